// The payloads of the records in a ring, after the state word (byte_ring.h), and handles. Both
// processes run on one machine, so the records are plain structs. The receiver checks every value
// in a record before use.
//
//   kind        payload               from      meaning
//   kEager      WireEnvelope, bytes   sender    a whole small message; costs credit
//   kRts        WireRts               sender    ready to send: a message waits at the sender
//   kDone       WireDone              receiver  the message was read or refused: its buffer is free
//   kCts        WireCts               receiver  clear to send: send the rest through the ring
//   kFragment   WireFragment, bytes   sender    the next bytes of a message, after its kCts
//   kWithdraw   WireWithdraw          sender    revokes the messages of one context sent by RTS
//   kControl    text                  both
//   kBye        text                  both      the reason of the connection's end; the last record
//   kRetire     WireRetire            sender    a region that was offered is gone
//
// A region (lib/memory/shared_regions.h) is offered over the Unix socket, by a WireOffer with the
// region's descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/call.h"
#include "transports/transport.h"

namespace entrain::shm {

enum Kind : uint8_t {  // 1 is RingFormat::kPad
  kEager = 2,
  kRts,
  kDone,
  kCts,
  kFragment,
  kWithdraw,
  kControl,
  kBye,
  kRetire,
};

struct WireEnvelope {
  uint64_t tag;
  Descriptor descriptor;

  static WireEnvelope Of(const Envelope& envelope) {
    return {envelope.tag.bits(), envelope.descriptor};
  }
  Envelope envelope() const { return {Tag::FromBits(tag), descriptor}; }
};
static_assert(sizeof(WireEnvelope) == 24, "with the state word half a line");

struct WireRts {
  WireEnvelope envelope;
  uint64_t bytes;
  uint64_t address;  // in the sender's memory
  uint64_t handle;   // the sender's handle, for kDone and kCts
  uint64_t region;   // the region that contains the message, offered before; 0: none
};
static_assert(sizeof(WireRts) <= 56, "with the state word one line");

struct WireDone {
  uint64_t handle;
};
struct WireCts {
  uint64_t handle;  // handle in the kRts
  uint64_t to;      // the receiver's handle, for kFragment
  // the first byte that the receiver wants. When the sender has sent all bytes from this offset on,
  // the message is done
  uint64_t offset;
};
struct WireFragment {
  uint64_t to;
};
struct WireWithdraw {
  uint64_t context;  // the receiver's context
};

struct WireRetire {
  uint64_t region;
};
struct WireOffer {
  static constexpr uint64_t kMagic = 0x31'4e'4f'49'47'45'52'00;  // "\0REGION1"
  uint64_t magic = kMagic;
  uint64_t region;
  uint64_t address, bytes;  // range in the sender's memory in which messages may lie
  // The range that the descriptor covers. At both ends of [address, address + bytes), less than a
  // page may lie outside of this range. If bytes of a message lie outside, the receiver reads these
  // bytes from the memory of the sender's process.
  uint64_t mapped_address, mapped_bytes;
};

inline absl::Status Breach(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

// Copies the head of a record out of shared memory, because the peer may change this memory after a
// check. Then removes the head from `*payload`. Returns false, and does nothing, if the record is
// too short.
template <typename Wire>
bool Take(ConstBytes* payload, Wire* wire) {
  if (payload->size() < sizeof(Wire)) {
    return false;
  }
  std::memcpy(wire, payload->data(), sizeof(Wire));
  payload->remove_prefix(sizeof(Wire));
  return true;
}
// Does the same for a record that consists only of a head.
template <typename Wire>
bool TakeAll(ConstBytes payload, Wire* wire) {
  return Take(&payload, wire) && payload.empty();
}

// A table of objects that the peer knows by number. A number is an index with a generation. So if a
// new object gets the index of a removed object, the old number does not name the new object.
template <typename T>
class HandleTable {
 public:
  uint64_t Add(const T& value) {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.push_back({});
    } else {
      index = free_.back();
      free_.pop_back();
    }
    slots_[index].value = value;
    slots_[index].live = true;
    return index | uint64_t{slots_[index].generation} << 32;
  }
  size_t size() const { return slots_.size() - free_.size(); }
  // Returns true if this table has ever used the index of this number. If not, the peer has
  // invented the number.
  bool Valid(uint64_t handle) const { return (handle & 0xffffffff) < slots_.size(); }
  // Returns null if the object was removed, or never added.
  T* Find(uint64_t handle) {
    if (!Valid(handle)) {
      return nullptr;
    }
    Slot& slot = slots_[handle & 0xffffffff];
    return slot.live && slot.generation == handle >> 32 ? &slot.value : nullptr;
  }
  void Remove(uint64_t handle) {
    Slot& slot = slots_[handle & 0xffffffff];
    slot.value = T();
    slot.live = false;
    ++slot.generation;
    free_.push_back(static_cast<uint32_t>(handle));
  }
  // Calls each(handle, value) for all objects. `each` may remove the object for which it is called.
  template <typename Each>
  void ForEach(Each each) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].live) {
        each(i | uint64_t{slots_[i].generation} << 32, slots_[i].value);
      }
    }
  }

 private:
  struct Slot {
    T value{};
    uint32_t generation = 0;
    bool live = false;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace entrain::shm
