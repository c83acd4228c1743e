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

// What can be measured. kSend stands for a ping-pong, and is called "send_recv".
inline constexpr CallKind kMeasured[] = {
    CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather, CallKind::kBroadcast,
    CallKind::kReduce,    CallKind::kGather,        CallKind::kScatter,   CallKind::kAllToAll,
    CallKind::kScan,      CallKind::kExclusiveScan, CallKind::kBarrier,   CallKind::kSend};
absl::string_view TitleOf(CallKind collective);
std::optional<CallKind> CollectiveFromTitle(absl::string_view title);

// Sizes follow nccl-tests: `bytes` is the larger of the two buffers of one rank.
struct Case {
  CallKind collective = CallKind::kAllReduce;
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

  // Elements of the buffers; the root's, on every rank.
  int64_t in_count() const {
    return collective == CallKind::kReduceScatter || collective == CallKind::kScatter ||
                   collective == CallKind::kAllToAll
               ? count * ranks
               : count;
  }
  int64_t out_count() const {
    return collective == CallKind::kAllGather || collective == CallKind::kGather ||
                   collective == CallKind::kAllToAll
               ? count * ranks
               : count;
  }
  // busbw = algbw * factor: what a perfect algorithm moves over the busiest link per byte of size.
  double bus_factor() const;
  // A ping-pong is two calls one after the other; its time is that of one.
  double time_share() const { return collective == CallKind::kSend ? 0.5 : 1.0; }
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
