// The numbers that one rank gives to the calls of a communicator.
//
// All ranks must start the collectives of one tag in the same order. Each rank numbers them in this
// order, so all ranks give a collective the same number. Sends and receives are numbered by tag,
// peer and direction, so the sender and the receiver give a message the same number. A rank counts
// in 64 bits. A message carries the low bits of its number (OnWire).
//
// Thread safety: any thread. If two calls of these functions must be atomic together, the caller
// must use its own lock.
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
  // Identifies the calls that share one sequence of numbers.
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
  // `kind`: kSend for messages to the peer. Any other kind: messages from the peer.
  static Series Messages(uint32_t tag, CallKind kind, int peer) {
    Series series{tag};
    series.way = 2 * peer + (kind == CallKind::kSend ? 0 : 1);
    return series;
  }
  // Returns the series to which a call belongs. It depends on the tag. For a send or receive it
  // also depends on the kind and the peer.
  static Series Of(const Call& call);
  static uint32_t TagOf(const Call& call) {
    return call.options.user_tag < 0 ? Tag::kUntagged
                                     : static_cast<uint32_t>(call.options.user_tag);
  }

  explicit CallNumbers(int ranks) : untagged_(1 + 2 * static_cast<size_t>(ranks)) {}

  // Takes the next number of the series and returns it. The first number is 0.
  uint64_t Take(Series series) ABSL_LOCKS_EXCLUDED(mutex_) {
    return series.tag == Tag::kUntagged ? Untagged(series).fetch_add(1, std::memory_order_relaxed)
                                        : TakeTagged(series);
  }
  // Returns the number that the next Take will return.
  uint64_t Next(Series series) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of calls in one series.
  struct Count {
    int64_t tag = -1;    // -1: untagged
    int peer = -1;       // the peer of messages; -1: collectives
    bool sends = false;  // messages to the peer; false: messages from the peer, or collectives
    uint64_t used = 0;
  };
  // Returns the counts of all series that have calls, sorted by tag, peer and direction.
  std::vector<Count> Counts() const ABSL_LOCKS_EXCLUDED(mutex_);

  static uint32_t OnWire(uint64_t number) { return static_cast<uint32_t>(number) & Tag::kCallMask; }
  // Returns true if the number with the low bits `on_wire` is less than `next`. The two numbers
  // must differ by at most half of the range that a message can carry.
  static bool IsBefore(uint32_t on_wire, uint64_t next) {
    return next > 0 && ((OnWire(next) - 1 - on_wire) & Tag::kCallMask) <= Tag::kCallMask / 2;
  }

 private:
  static Count CountOf(Series series, uint64_t used);
  uint64_t TakeTagged(Series series) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the counter of an untagged series. Element 0 belongs to the collectives. The other
  // elements belong to the messages, in the order of Series::way.
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
