// The peer's memory regions that this process has mapped, so that it can read messages in place.
// The peer offers a region by sending its descriptor over the Unix socket, before the first RTS
// that names the region. The peer reports through the ring that a region is gone (kRetire).
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"

#include "lib/memory/sealed_memory.h"
#include "lib/net/socket.h"
#include "transports/shm/wire.h"

namespace entrain::shm {

// A region stays mapped as long as the object has an owner. `memory` is empty if this process could
// not map the region.
struct PeerRegion {
  // Addresses in the peer's address space. The parts of [address, address + bytes) that are not
  // mapped have room directly before and after the mapping.
  uint64_t address = 0, bytes = 0, mapped_address = 0;
  SealedMemory memory;

  std::byte* At(uint64_t address_there) const {
    return memory.data() +
           (static_cast<int64_t>(address_there) - static_cast<int64_t>(mapped_address));
  }
  struct Range {
    uint64_t address, bytes;
  };
  // Returns the parts at the beginning and at the end of a range that are not mapped. If the whole
  // range is mapped, both parts have 0 bytes.
  std::array<Range, 2> Unmapped(uint64_t from, uint64_t count) const;
  bool Maps(uint64_t from, uint64_t count) const {
    const auto [head, tail] = Unmapped(from, count);
    return head.bytes + tail.bytes == 0;
  }
};

class PeerRegions {
 public:
  // most regions offered at a time; more break the protocol
  static constexpr size_t kMost = 1 << 16;

  // Maps a region that the peer has offered. `memory` is invalid if no descriptor was received.
  // Returns an error if the peer broke the protocol.
  absl::Status Take(const WireOffer& offer, Fd memory);
  bool Has(uint64_t id) const { return regions_.count(id) != 0; }
  // Returns the region that an RTS names, or null if this process could not map the region. Returns
  // an error if the peer has not offered the region, or if the bytes are not inside the region.
  absl::StatusOr<std::shared_ptr<const PeerRegion>> Find(uint64_t id, uint64_t address,
                                                         uint64_t bytes) const;
  absl::Status Forget(uint64_t id);
  void Clear() { regions_.clear(); }

 private:
  std::map<uint64_t, std::shared_ptr<const PeerRegion>> regions_;
};

}  // namespace entrain::shm
