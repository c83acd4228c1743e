// The memory regions of the peer that this process has mapped, to read messages in place. To offer
// a region, the peer sends its descriptor over the Unix socket, before the first RTS that names the
// region. When a region is gone, the peer sends kRetire through the ring.
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

// A region of the peer. It stays mapped until its last shared_ptr is gone. `memory` is empty if
// this process could not map the region.
struct PeerRegion {
  // Addresses in the peer's address space. The first and last bytes of [address, address + bytes)
  // may be unmapped. This process has private memory for them directly before and after the
  // mapping.
  uint64_t address = 0, bytes = 0, mapped_address = 0;
  SealedMemory memory;

  std::byte* At(uint64_t address_there) const {
    return memory.data() +
           (static_cast<int64_t>(address_there) - static_cast<int64_t>(mapped_address));
  }
  struct Range {
    uint64_t address, bytes;
  };
  // Returns the unmapped parts at the beginning and at the end of a range. If the whole range is
  // mapped, each of these parts has 0 bytes.
  std::array<Range, 2> Unmapped(uint64_t from, uint64_t count) const;
  bool Maps(uint64_t from, uint64_t count) const {
    const auto [head, tail] = Unmapped(from, count);
    return head.bytes + tail.bytes == 0;
  }
};

class PeerRegions {
 public:
  // the largest number of offered regions; a peer that offers more breaks the protocol
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
