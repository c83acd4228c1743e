// What ranks of one machine share in floor-bench, and a rank's place in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "lib/kernels/kernels.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

struct FloorMemory {
  static constexpr size_t kLine = 64, kInline = kLine - sizeof(uint32_t);
  static constexpr size_t kLaneBytes = 128 << 10, kSegment = 4 << 10;
  static constexpr uint32_t kSegments = kLaneBytes / kSegment;
  static constexpr int kMostRanks = 64;

  struct Lane {
    // kSegments times the call whose payload is here, and the segments of it that are.
    alignas(kLine) std::atomic<uint32_t> flag;
    std::byte small[kInline];
    alignas(kLine) std::byte large[kLaneBytes];
  };
  struct Rank {
    Lane lanes[2];
    alignas(kLine) std::atomic<uint32_t> step;  // how far it is in what the kernel reads
    alignas(kLine) std::atomic<uint32_t> read;  // the last call whose lanes it has read
    alignas(kLine) pid_t pid;
    const std::byte *in, *out;  // in its own memory
  };
  Rank ranks[kMostRanks];
};

class FloorRank {
 public:
  using Range = std::pair<size_t, size_t>;  // first and last

  FloorRank(FloorMemory* shared, int rank, int ranks, bool crowded)
      : shared_(*shared), rank_(rank), ranks_(ranks), crowded_(crowded) {}

 protected:
  // Of the call, or of each part where ranks have parts.
  static size_t BytesOf(const Case& measured) {
    return static_cast<size_t>(measured.count) * sizeof(float);
  }
  FloorMemory::Rank& Own() { return shared_.ranks[rank_]; }
  // All others, beginning with the next one, so that not all want the same one at once.
  int Other(int step) const { return (rank_ + step) % ranks_; }
  static size_t At(int k, size_t part) { return part * static_cast<size_t>(k); }
  // What the parts of all others are together.
  size_t Packed(size_t part) const { return At(ranks_ - 1, part); }
  // What rank k reduces of `bytes`.
  Range ShareOf(int k, size_t bytes) const {
    const size_t share =
        bytes / static_cast<size_t>(ranks_) / FloorMemory::kLine * FloorMemory::kLine;
    return {At(k, share), k == ranks_ - 1 ? bytes : At(k + 1, share)};
  }

  // Acquire: pairs with the release of whoever counts up; what it wrote before is seen.
  void Await(const std::atomic<uint32_t>& counter, uint32_t value) const {
    while (static_cast<int32_t>(counter.load(std::memory_order_acquire) - value) < 0) {
      if (crowded_) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }

  void Sum(std::byte* target, const void* const* sources, size_t bytes) const {
    kernels_.combine(ReduceOp::kSum, DType::kF32, target, sources, ranks_,
                     static_cast<int64_t>(bytes / sizeof(float)), 1);
  }

  FloorMemory& shared_;
  const int rank_, ranks_;
  const bool crowded_;
  const Kernels& kernels_ = BestKernels();
};

}  // namespace entrain::perf
