// The numbers of a communicator's calls, as one rank gives them out. All ranks number their collectives alike: for each
// tag in the order in which they are started. Two ranks number the messages between them alike: for each tag and each
// direction. A number is one sequence of 64 bits on each rank; a message carries the low bits (OnWire).
//
// Thread safety: any thread. A caller that must not let others come between two calls holds a lock of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "transports/transport.h"

namespace entrain {

class CallNumbers {
 public:
  // What a number belongs to.
  struct Series {
    uint32_t tag = Tag::kUntagged;
    int way = kCollectives;
    friend bool operator==(const Series&, const Series&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Series& series) {
      return H::combine(std::move(state), series.tag, series.way);
    }

   private:
    friend class CallNumbers;
    static constexpr int kCollectives = -1;
  };
  static Series Collectives(uint32_t tag) { return {tag}; }
  // `kind`: kSend to the peer; any other: receives from it.
  static Series Messages(uint32_t tag, CallKind kind, int peer) {
    Series series{tag};
    series.way = 2 * peer + (kind == CallKind::kSend ? 0 : 1);
    return series;
  }
  // Of any call: by its tag, and for a send or receive by its peer.
  static Series Of(const Call& call);
  static uint32_t TagOf(const Call& call) {
    return call.options.user_tag < 0 ? Tag::kUntagged
                                     : static_cast<uint32_t>(call.options.user_tag);
  }

  explicit CallNumbers(int ranks) : untagged_(1 + 2 * static_cast<size_t>(ranks)) {}

  // The next number, which is used up by this. From 0.
  uint64_t Take(Series series) ABSL_LOCKS_EXCLUDED(mutex_) {
    return series.tag == Tag::kUntagged ? Untagged(series).fetch_add(1, std::memory_order_relaxed)
                                        : TakeTagged(series);
  }
  // The same, which is not used up.
  uint64_t Next(Series series) const ABSL_LOCKS_EXCLUDED(mutex_);

  static uint32_t OnWire(uint64_t number) { return static_cast<uint32_t>(number) & Tag::kCallMask; }
  // Whether `on_wire` was given out before `next`. Ranks are never further apart than half of all numbers on the wire.
  static bool IsBefore(uint32_t on_wire, uint64_t next) {
    return next > 0 && ((OnWire(next) - 1 - on_wire) & Tag::kCallMask) <= Tag::kCallMask / 2;
  }

 private:
  uint64_t TakeTagged(Series series) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of collectives the first, then by way.
  const std::atomic<uint64_t>& Untagged(Series series) const {
    return untagged_[static_cast<size_t>(series.way + 1)];
  }
  std::atomic<uint64_t>& Untagged(Series series) {
    return untagged_[static_cast<size_t>(series.way + 1)];
  }

  std::vector<std::atomic<uint64_t>> untagged_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Series, uint64_t> tagged_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
