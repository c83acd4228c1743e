// A measured case (one collective at one size), and the interface of a measured library.
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

// The collectives that can be measured. kSend stands for a ping-pong, and is called "send_recv".
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
  int64_t count = 0;  // number of elements, as the call's count argument

  // Returns the largest case of at most `bytes`, with at least one element (per rank, if ranks have
  // parts).
  static Case OfSize(const Case& like, int64_t bytes);
  // Returns cases of min_bytes, min_bytes * factor, ... and max_bytes. Sizes that give equal cases
  // appear once.
  static std::vector<Case> Sweep(const Case& like, int64_t min_bytes, int64_t max_bytes,
                                 int factor);

  // Return the number of elements of the root's buffers. All ranks have buffers of this size.
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
  // busbw = algbw * factor. The factor is the number of bytes that a perfect algorithm moves over
  // the busiest link, per byte of size.
  double bus_factor() const;
  // A ping-pong is two calls one after the other. Its figure is the time of one call.
  double time_share() const { return collective == CallKind::kSend ? 0.5 : 1.0; }
};

// A library, as the loop uses it. One object per rank.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Called before the runs of a case. The loop skips a case for which this returns kUnimplemented
  // (on all ranks).
  virtual absl::Status Prepare(const Case& /*measured*/, void* /*in*/, void* /*out*/) {
    return absl::OkStatus();
  }
  // Runs one blocking call. Both buffers are those of Prepare.
  virtual absl::Status Run(const Case& measured, const void* in, void* out) = 0;
  // Returns true if the call works only in `out`. The loop then fills `out` with the contents of
  // `in`.
  virtual bool in_place(const Case& /*measured*/) const { return false; }
  virtual std::string transport() const = 0;
  virtual std::string algorithm(const Case& measured) const = 0;
};

}  // namespace entrain::perf
