// Notes on calls that are not open on this rank: calls that peers have started and this rank has
// not, and calls of this rank that are over. With these notes a rank finds that a peer called
// something else. The number of notes is bounded.
//
// Thread safety: none. Belongs to CommCore's driver.
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
  CallId id{~0u, 0};      // the initial value stands for no call
  uint64_t sequence = 0;  // id.number has its low bits
  Descriptor descriptor;
};

class CallNotes {
 public:
  struct Heard {
    const Endpoint* from = nullptr;
    Descriptor descriptor;
  };

  // Must be called when a peer has started a call that is not open here. If this rank's call of
  // that number is not over, notes the peer's descriptor. If this rank's call is over, is still
  // remembered and has another descriptor, returns this rank's call. Otherwise returns null. The
  // result is valid until the next Over.
  const OwnCall* Hear(const Endpoint& from, CallId call, const Descriptor& theirs);
  // Must be called when a call of this rank starts, or when it is over without ever having been
  // open. If a peer's note for this call has another descriptor, returns that note. Removes the
  // notes for this call.
  std::optional<Heard> Meet(CallId call, const Descriptor& ours);
  // Must be called when a call of this rank is over. About the last 256 calls are remembered. A
  // message that comes for one of them is from a rank that called something else.
  void Over(const OwnCall& call) { SlotOf(call.id) = call; }
  void Clear() { early_.clear(); }
  // Returns true if this rank's call is over and a later call with the same tag has taken its slot.
  bool HasForgotten(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    const uint32_t later = (over.id.number - call.number) & Tag::kCallMask;
    return over.id.user_tag == call.user_tag && later != 0 && later <= Tag::kCallMask / 2;
  }
  // Returns null if this rank's call is not over, or if it is forgotten.
  const OwnCall* OwnThatIsOver(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    return over.id == call ? &over : nullptr;
  }

 private:
  // The first descriptor heard for a call, and one that differs from it. If any descriptor differs
  // from ours, one of these two does.
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
