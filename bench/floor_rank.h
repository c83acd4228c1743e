// What every exchange of floor-bench has: a rank, how it counts and sums, and which of its functions a
// measured call is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/kernels/kernels.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

constexpr size_t kFloorLine = 64;

class FloorRank {
 public:
  using Range = std::pair<size_t, size_t>;  // first and last

  FloorRank(int rank, int ranks, bool crowded) : rank_(rank), ranks_(ranks), crowded_(crowded) {}

 protected:
  // Of the call, or of each part where ranks have parts.
  static size_t BytesOf(const Case& measured) {
    return static_cast<size_t>(measured.count) * sizeof(float);
  }
  // All others, beginning with the next one, so that not all want the same one at once.
  int Other(int step) const { return (rank_ + step) % ranks_; }
  static size_t At(int k, size_t part) { return part * static_cast<size_t>(k); }
  // What the parts of all others are together.
  size_t Packed(size_t part) const { return At(ranks_ - 1, part); }
  // Of `bytes`, which `sharers` ranks share in whole lines, what the k-th of them has.
  static Range ShareOf(int k, int sharers, size_t bytes) {
    const size_t share = bytes / static_cast<size_t>(sharers) / kFloorLine * kFloorLine;
    return {At(k, share), k == sharers - 1 ? bytes : At(k + 1, share)};
  }
  // What rank k reduces.
  Range ShareOf(int k, size_t bytes) const { return ShareOf(k, ranks_, bytes); }

  void Sum(std::byte* target, const void* const* sources, int count, size_t bytes) const {
    kernels_.combine(ReduceOp::kSum, DType::kF32, target, sources, count,
                     static_cast<int64_t>(bytes / sizeof(float)), 1);
  }

  // Calls the function of `exchange` that the case is.
  template <typename Exchange>
  static auto Call(Exchange& exchange, const Case& measured, const std::byte* source,
                   std::byte* target) {
    const size_t bytes = BytesOf(measured);
    const int root = measured.root;
    switch (measured.collective) {
      case CallKind::kAllReduce:
        return exchange.AllReduce(source, target, bytes);
      case CallKind::kReduceScatter:
        return exchange.ReduceScatter(source, target, bytes);
      case CallKind::kAllGather:
        return exchange.AllGather(source, target, bytes);
      case CallKind::kBroadcast:
        return exchange.Broadcast(root, target, bytes);
      case CallKind::kReduce:
        return exchange.Reduce(root, source, target, bytes);
      case CallKind::kGather:
        return exchange.Gather(root, source, target, bytes);
      case CallKind::kScatter:
        return exchange.Scatter(root, source, target, bytes);
      case CallKind::kAllToAll:
        return exchange.AllToAll(source, target, bytes);
      case CallKind::kSend:
        return exchange.PingPong(source, target, bytes);
      default:
        return exchange.Barrier();
    }
  }

  const int rank_, ranks_;
  const bool crowded_;

 private:
  const Kernels& kernels_ = BestKernels();
};

}  // namespace entrain::perf
