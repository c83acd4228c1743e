// Small calls of floor-bench: payloads go through lanes that all ranks map.
//
//   up to 60 bytes      flag and payload in one line of the writer's lane
//   up to MostInLanes   payload behind the flag, which tells how far it has been written
//
// What goes this way, and how it is copied, is as was quickest on the Xeon of bench/README.md.
#pragma once

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"

#include "bench/floor_memory.h"
#include "transports/shm/line_copy.h"

namespace entrain::perf {

// There are two generations of lanes, so that nobody waits for readers of the last call. That of the
// last but one call must be free when it is written again. Where all read all, everybody has put
// something into the last one, which it does only behind that call; where not, readers say so
// (HaveRead, AwaitReader).
class FloorLanes : private FloorShmRank {
 public:
  using FloorShmRank::FloorShmRank;

  // Whether it serves this case; only then may it be run.
  bool Prepare(const Case& measured) {
    const CallKind collective = measured.collective;
    const bool parts = collective == CallKind::kReduceScatter || collective == CallKind::kScatter ||
                       collective == CallKind::kAllToAll;
    const size_t bytes = BytesOf(measured);
    // Where all write at once and share cores, lines are more often in one's own.
    const bool lone = HasRoot(collective) || collective == CallKind::kSend;
    most_by_lines_ = crowded_ && lone ? kLaneBytes : shm::MostByLines(!crowded_);
    return collective != CallKind::kBarrier && bytes <= MostInLanes(collective) &&
           (parts ? Packed(bytes) : bytes) <= kLaneBytes;
  }

  void Run(const Case& measured, const std::byte* source, std::byte* target) {
    ++call_;
    Call(*this, measured, source, target);
  }

 private:
  friend class FloorRank;  // Call
  static constexpr size_t kLine = FloorMemory::kLine, kInline = FloorMemory::kInline;
  static constexpr size_t kLaneBytes = FloorMemory::kLaneBytes;
  static constexpr size_t kSegment = FloorMemory::kSegment;
  static constexpr uint32_t kSegments = FloorMemory::kSegments;
  static constexpr size_t kMostWhole = 8 << 10;  // reduced by every rank
  using Bytes = absl::Span<const std::byte>;
  using Lane = FloorMemory::Lane;

  size_t MostInLanes(CallKind collective) const {
    if (!crowded_) {
      return 4 << 10;
    }
    return collective == CallKind::kAllReduce ? kLaneBytes
           : collective == CallKind::kReduce  ? 32 << 10
                                              : 16 << 10;
  }

  Lane& LaneOf(int rank, uint32_t call) { return shared_.ranks[rank].lanes[call & 1]; }

  void Put(Bytes first, Bytes second = {}) {
    Lane& own = LaneOf(rank_, call_);
    const size_t payload = first.size() + second.size();
    std::byte* const to = payload <= kInline ? own.small : own.large;
    size_t at = 0;
    for (const Bytes bytes : {first, second}) {
      for (size_t done = 0; done < bytes.size();) {
        const size_t size = std::min(bytes.size() - done, kSegment - at % kSegment);
        if (payload <= most_by_lines_) {
          shm::CopyIntoLines(to + at, bytes.data() + done, size);
        } else {
          std::memcpy(to + at, bytes.data() + done, size);
        }
        done += size;
        at += size;
        if (at == payload || at % kSegment == 0) {
          const size_t segments = at == payload ? kSegments : at / kSegment;
          own.flag.store(call_ * kSegments + static_cast<uint32_t>(segments),
                         std::memory_order_release);
        }
      }
    }
    if (payload > kInline && payload <= most_by_lines_) {
      TakeLines(LaneOf(rank_, call_ + 1), payload);
    }
  }

  // The lines of the next call, which its readers had last.
  static void TakeLines([[maybe_unused]] Lane& lane, [[maybe_unused]] size_t bytes) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(lane.flag));
    for (size_t at = 0; at < bytes; at += kLine) {
      asm volatile("prefetchw %0" : : "m"(lane.large[at]));
    }
#endif
  }

  // The payload in `from`'s lane, of which what is before `end` is there.
  const std::byte* Get(int from, size_t payload, size_t end) {
    Lane& lane = LaneOf(from, call_);
    const bool whole = payload <= kInline;
    const size_t segments = whole ? kSegments : (end + kSegment - 1) / kSegment;
    Await(lane.flag, call_ * kSegments + static_cast<uint32_t>(segments));
    return whole ? lane.small : lane.large;
  }

  void Take(int from, size_t payload, size_t at, std::byte* target, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const size_t size = std::min(bytes - done, kSegment - (at + done) % kSegment);
      const std::byte* const there = Get(from, payload, at + done + size) + at + done;
      if (payload <= most_by_lines_) {
        if (payload > kInline) {
          shm::FetchLines(there, size);
        }
        shm::CopyOutOfLines(target + done, there, size);
      } else {
        std::memcpy(target + done, there, size);
      }
      done += size;
    }
  }

  // target = the sum of `own` and of what all others have for this rank, in the order of ranks.
  // place(k): how large rank k's payload is, and where in it that is.
  template <typename Place>
  void SumLanes(Bytes own, Place place, std::byte* target) {
    const void* sources[FloorMemory::kMostRanks];
    for (size_t done = 0; done < own.size(); done += kSegment) {
      const size_t size = std::min(kSegment, own.size() - done);
      for (int k = 0; k < ranks_; ++k) {
        if (k == rank_) {
          sources[k] = own.data() + done;
          continue;
        }
        const auto [payload, first] = place(k);
        const std::byte* const there = Get(k, payload, first + done + size) + first + done;
        if (payload > kInline && payload <= most_by_lines_) {
          shm::FetchLines(there, size);
        }
        sources[k] = there;
      }
      Sum(target + done, sources, ranks_, size);
    }
  }

  void HaveRead() {
    Own().read.store(call_, std::memory_order_release);
  }
  void AwaitReader(int k) {
    Await(shared_.ranks[k].read, call_ - 2);
  }
  void AwaitReaders() {
    for (int step = 1; step < ranks_; ++step) {
      AwaitReader(Other(step));
    }
  }

  void AllReduce(const std::byte* source, std::byte* target, size_t bytes) {
    if (bytes > kMostWhole) {
      Shares(source, target, bytes);
      return;
    }
    Put({source, bytes});
    SumLanes(
        {source, bytes},
        [&](int) {
          return Range{bytes, 0};
        },
        target);
  }

  // Everybody sums a share, then all take all shares.
  void Shares(const std::byte* source, std::byte* target, size_t bytes) {
    const auto [first, last] = ShareOf(rank_, bytes);
    const Bytes own(source + first, last - first);
    Put({source, first}, {source + last, bytes - last});
    const auto place = [&, at = first](int k) {
      const auto [others, end] = ShareOf(k, bytes);
      return Range{bytes - (end - others), k < rank_ ? at - (end - others) : at};
    };
    SumLanes(own, place, target + first);
    ++call_;
    Put({target + first, own.size()});
    for (int step = 1; step < ranks_; ++step) {
      const auto [others, end] = ShareOf(Other(step), bytes);
      Take(Other(step), end - others, 0, target + others, end - others);
    }
  }

  // The parts of all others, and where among them in `from`'s lane the own one is.
  void PutParts(const std::byte* source, size_t part) {
    Put({source, At(rank_, part)}, {source + At(rank_ + 1, part), At(ranks_ - 1 - rank_, part)});
  }
  Range OwnIn(int from, size_t part) const {
    return {Packed(part), At(rank_ < from ? rank_ : rank_ - 1, part)};
  }

  void ReduceScatter(const std::byte* source, std::byte* target, size_t part) {
    PutParts(source, part);
    SumLanes(
        {source + At(rank_, part), part}, [&](int k) { return OwnIn(k, part); }, target);
  }

  void TakeParts(const std::byte* own, std::byte* target, size_t part) {
    std::memcpy(target + At(rank_, part), own, part);
    for (int step = 1; step < ranks_; ++step) {
      Take(Other(step), part, 0, target + At(Other(step), part), part);
    }
  }

  void AllGather(const std::byte* source, std::byte* target, size_t part) {
    Put({source, part});
    TakeParts(source, target, part);
  }

  void AllToAll(const std::byte* source, std::byte* target, size_t part) {
    PutParts(source, part);
    std::memcpy(target + At(rank_, part), source + At(rank_, part), part);
    for (int step = 1; step < ranks_; ++step) {
      const int k = Other(step);
      const auto [payload, at] = OwnIn(k, part);
      Take(k, payload, at, target + At(k, part), part);
    }
  }

  void Broadcast(int root, std::byte* target, size_t bytes) {
    if (rank_ == root) {
      AwaitReaders();
      Put({target, bytes});
    } else {
      Take(root, bytes, 0, target, bytes);
      HaveRead();
    }
  }

  void Scatter(int root, const std::byte* source, std::byte* target, size_t part) {
    if (rank_ == root) {
      AwaitReaders();
      PutParts(source, part);
      std::memcpy(target, source + At(rank_, part), part);
    } else {
      const auto [payload, at] = OwnIn(root, part);
      Take(root, payload, at, target, part);
      HaveRead();
    }
  }

  void Reduce(int root, const std::byte* source, std::byte* target, size_t bytes) {
    if (rank_ == root) {
      SumLanes(
          {source, bytes},
          [&](int) {
            return Range{bytes, 0};
          },
          target);
      HaveRead();
    } else {
      AwaitReader(root);
      Put({source, bytes});
    }
  }

  void Gather(int root, const std::byte* source, std::byte* target, size_t part) {
    if (rank_ == root) {
      TakeParts(source, target, part);
      HaveRead();
    } else {
      AwaitReader(root);
      Put({source, part});
    }
  }

  // Ranks 0 and 1, 2 and 3, ...; an odd one out does nothing.
  void PingPong(const std::byte* source, std::byte* target, size_t bytes) {
    const int peer = rank_ ^ 1;
    if (peer >= ranks_) {
      return;
    }
    if (rank_ < peer) {
      Put({source, bytes});
    }
    Take(peer, bytes, 0, target, bytes);
    if (rank_ > peer) {
      Put({source, bytes});
    }
  }

  void Barrier() {}  // never this way

  uint32_t call_ = 0;
  size_t most_by_lines_ = 0;  // of the case: copied as line_copy.h does
};

}  // namespace entrain::perf
