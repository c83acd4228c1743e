// The numbers that one rank gives to a communicator's calls. All ranks give collectives the same
// numbers: per tag, in the order in which they are started. Two ranks give the messages between
// them the same numbers: per tag and direction. A number counts in 64 bits on each rank, and a
// message carries its low bits (OnWire).
//
// Thread safety: any thread. A caller that must keep two calls together needs a lock of its own.
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
  // The calls that are numbered together.
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
  // `kind`: kSend for messages to the peer, any other kind for messages from it.
  static Series Messages(uint32_t tag, CallKind kind, int peer) {
    Series series{tag};
    series.way = 2 * peer + (kind == CallKind::kSend ? 0 : 1);
    return series;
  }
  // Returns the series of a call: by its tag, and for a send or receive also by its peer.
  static Series Of(const Call& call);
  static uint32_t TagOf(const Call& call) {
    return call.options.user_tag < 0 ? Tag::kUntagged
                                     : static_cast<uint32_t>(call.options.user_tag);
  }

  explicit CallNumbers(int ranks) : untagged_(1 + 2 * static_cast<size_t>(ranks)) {}

  // Uses up the next number of the series and returns it. The first number is 0.
  uint64_t Take(Series series) ABSL_LOCKS_EXCLUDED(mutex_) {
    return series.tag == Tag::kUntagged ? Untagged(series).fetch_add(1, std::memory_order_relaxed)
                                        : TakeTagged(series);
  }
  // Returns the next number of the series and does not use it up.
  uint64_t Next(Series series) const ABSL_LOCKS_EXCLUDED(mutex_);

  // How many numbers of a series were used up.
  struct Count {
    int64_t tag = -1;    // -1: untagged
    int peer = -1;       // of messages; -1: collectives
    bool sends = false;  // messages to the peer, else from it
    uint64_t used = 0;
  };
  // Returns the series of which a number was used up, sorted by tag.
  std::vector<Count> Counts() const ABSL_LOCKS_EXCLUDED(mutex_);

  static uint32_t OnWire(uint64_t number) { return static_cast<uint32_t>(number) & Tag::kCallMask; }
  // Returns whether `on_wire` was given out before `next`. Correct as long as ranks are not further
  // apart than half of the numbers on the wire.
  static bool IsBefore(uint32_t on_wire, uint64_t next) {
    return next > 0 && ((OnWire(next) - 1 - on_wire) & Tag::kCallMask) <= Tag::kCallMask / 2;
  }

 private:
  static Count CountOf(Series series, uint64_t used);
  uint64_t TakeTagged(Series series) ABSL_LOCKS_EXCLUDED(mutex_);
  // Element 0 belongs to the collectives, the others to the messages, by `way`.
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
