// Notes on two kinds of calls: calls that a peer has started and this rank has not started, and
// calls of this rank that are over. From these notes a rank finds that a peer called something
// else. The number of notes is bounded.
//
// Thread safety: none. Belongs to CommCore's driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"

#include "lib/base/call.h"
#include "lib/comm/failure/blame.h"
#include "transports/transport.h"

namespace entrain {

// A call that this rank has made.
struct OwnCall {
  CallId id{~0u, 0};      // the initial value stands for no call
  uint64_t sequence = 0;  // id.number is the low bits of this number
  Descriptor descriptor;
};

class CallNotes {
 public:
  struct Heard {
    const Endpoint* from = nullptr;
    Descriptor descriptor;
  };

  // Must be called when a peer has started a call that is not open on this rank. If this rank has
  // not made the call yet, stores the peer's descriptor and returns null. If this rank's call is
  // over and is still remembered, compares the descriptors. If they differ, returns this rank's
  // call, otherwise null. The result is valid until the next Over.
  const OwnCall* Hear(const Endpoint& from, CallId call, const Descriptor& theirs);
  // Must be called when a call of this rank starts. For a call of the inline path, which is never
  // open, must be called when the call is over. If a stored descriptor differs from `ours`, returns
  // that descriptor and its sender. Removes the notes for this call.
  std::optional<Heard> Meet(CallId call, const Descriptor& ours);
  // Must be called when a call of this rank is over. About the last 256 calls are remembered. If a
  // message arrives for one of these calls, its sender called something else.
  void Over(const OwnCall& call) { SlotOf(call.id) = call; }
  void Clear() { early_.clear(); }
  // Returns true if this rank's call is over and its record was overwritten by a later call with
  // the same tag.
  bool HasForgotten(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    const uint32_t later = (over.id.number - call.number) & Tag::kCallMask;
    return over.id.user_tag == call.user_tag && later != 0 && later <= Tag::kCallMask / 2;
  }
  // Returns null if this rank's call is not over, or if its record was overwritten.
  const OwnCall* OwnThatIsOver(CallId call) const {
    const OwnCall& over = over_[SlotNumber(call)];
    return over.id == call ? &over : nullptr;
  }

 private:
  // The first descriptor that came for a call, and one descriptor that differs from the first. If
  // any descriptor differs from ours, one of these two differs from ours.
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
  std::array<OwnCall, kOver> over_;             // by SlotNumber
};

}  // namespace entrain
