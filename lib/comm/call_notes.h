// What is known of calls that are not open here, so that ranks which called different things find out: what others have
// called in calls of ours that have not started, and what ours were that are over. Bounded.
//
// Thread safety: none; CommCore's driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"

#include "lib/base/call.h"
#include "lib/comm/membership.h"
#include "transports/transport.h"

namespace entrain {

// A call of this rank.
struct OwnCall {
  CallId id{~0u, 0};      // as it is: none
  uint64_t sequence = 0;  // of which id.number is the part that a tag carries
  Descriptor descriptor;
};

class CallNotes {
 public:
  struct Heard {
    const Endpoint* from = nullptr;
    Descriptor descriptor;
  };

  // `from` has called this in a call that is not open here: noted, unless ours is over. Returns ours if it was another and
  // is remembered; null otherwise. Good until the next Over.
  const OwnCall* Hear(const Endpoint& from, CallId call, const Descriptor& theirs);
  // One of ours starts, or is over and was never open. Returns what somebody has called instead, and forgets the call.
  std::optional<Heard> Meet(CallId call, const Descriptor& ours);
  // The last 256 or so are remembered; messages for one that still come are of ranks that called something else.
  void Over(const OwnCall& call) { SlotOf(call.id) = call; }
  void Clear() { early_.clear(); }
  // It is over, and later ones of its kind have taken its place.
  bool HasForgotten(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    const uint32_t later = (over.id.number - call.number) & Tag::kCallMask;
    return over.id.user_tag == call.user_tag && later != 0 && later <= Tag::kCallMask / 2;
  }
  // Null: it is not over, or forgotten.
  const OwnCall* OwnThatIsOver(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    return over.id == call ? &over : nullptr;
  }

 private:
  // The first that was heard of a call, and one that differs: one of the two differs from ours, if any does.
  struct Early {
    Heard first, other;
  };
  static constexpr size_t kMaxEarly = 1 << 16, kOver = 256;
  static uint64_t KeyOf(CallId call) { return (uint64_t{call.user_tag} << 32) | call.number; }
  static size_t SlotNumber(CallId call) {
    return (call.number + call.user_tag * 0x9E3779B1u) % kOver;
  }
  OwnCall& SlotOf(CallId call) { return over_[SlotNumber(call)]; }

  absl::flat_hash_map<uint64_t, Early> early_;  // by KeyOf
  std::array<OwnCall, kOver> over_;             // by SlotOf
};

}  // namespace entrain
