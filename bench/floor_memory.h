// What ranks of one machine share in floor-bench.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <sched.h>
#include <unistd.h>

#include "bench/floor_rank.h"

namespace entrain::perf {

struct FloorMemory {
  static constexpr size_t kLine = kFloorLine, kInline = kLine - sizeof(uint32_t);
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

// A rank's place in it.
class FloorShmRank : protected FloorRank {
 public:
  FloorShmRank(FloorMemory* shared, int rank, int ranks, bool crowded)
      : FloorRank(rank, ranks, crowded), shared_(*shared) {}

 protected:
  FloorMemory::Rank& Own() { return shared_.ranks[rank_]; }

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

  FloorMemory& shared_;
};

}  // namespace entrain::perf
