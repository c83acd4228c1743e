// What is measured: one collective at one size, and what measures it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/call.h"
#include "lib/base/dtype.h"

namespace entrain::perf {

enum class Collective {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kScan,
  kExclusiveScan,
  kBarrier,
  kSendRecv
};
constexpr int kCollectives = 12;

absl::string_view NameOf(Collective collective);  // "all_reduce", as in the C API
std::optional<Collective> CollectiveFromName(absl::string_view name);
bool Reduces(Collective collective);
// A root gives or gets what the others do not.
bool IsRooted(Collective collective);

// Sizes follow nccl-tests: `bytes` is the larger of the two buffers of one rank.
struct Case {
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int ranks = 1;
  int64_t bytes = 0;
  int64_t count = 0;  // elements, as the call's count argument

  // The largest case of at most `bytes`, and at least one element (a rank, where ranks have parts).
  static Case OfSize(const Case& like, int64_t bytes);
  // Of min_bytes, min_bytes * factor, ... and max_bytes itself; sizes that come to one case once.
  static std::vector<Case> Sweep(const Case& like, int64_t min_bytes, int64_t max_bytes,
                                 int factor);

  bool per_rank() const;
  // Elements of the buffers; the root's, on every rank.
  int64_t in_count() const {
    return collective == Collective::kReduceScatter || collective == Collective::kScatter ||
                   collective == Collective::kAllToAll
               ? count * ranks
               : count;
  }
  int64_t out_count() const {
    return collective == Collective::kAllGather || collective == Collective::kGather ||
                   collective == Collective::kAllToAll
               ? count * ranks
               : count;
  }
  // busbw = algbw * factor: what a perfect algorithm moves over the busiest link per byte of size.
  double bus_factor() const;
  // A ping-pong is two calls one after the other; its time is that of one.
  double time_share() const { return collective == Collective::kSendRecv ? 0.5 : 1.0; }
};

// A library as the loop sees it. One object a rank.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Before the runs of a case; kUnimplemented (on all ranks) passes over it.
  virtual absl::Status Prepare(const Case& /*measured*/, void* /*in*/, void* /*out*/) {
    return absl::OkStatus();
  }
  // One blocking call. Both buffers are those of Prepare.
  virtual absl::Status Run(const Case& measured, const void* in, void* out) = 0;
  // Works in `out` only, which the loop has filled with what it would have given in `in`.
  virtual bool in_place(const Case& /*measured*/) const { return false; }
  virtual std::string transport() const = 0;
  virtual std::string algorithm(const Case& measured) const = 0;
};

}  // namespace entrain::perf
