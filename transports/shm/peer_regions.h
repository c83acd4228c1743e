// The peer's memory regions that this process has mapped, so that it can read messages in place.
// The peer offers a region by sending its descriptor over the Unix socket, before the first RTS
// that names the region. It says through the ring when the region is gone.
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

// A region stays mapped while it is referenced. `memory` is empty if the region could not be mapped
// here.
struct PeerRegion {
  // Addresses in the peer. The mapping has room before and behind it for the parts of [address,
  // address + bytes) that are not mapped.
  uint64_t address = 0, bytes = 0, mapped_address = 0;
  SealedMemory memory;

  std::byte* At(uint64_t address_there) const {
    return memory.data() +
           (static_cast<int64_t>(address_there) - static_cast<int64_t>(mapped_address));
  }
  struct Range {
    uint64_t address, bytes;
  };
  // Returns the parts of a range that are not mapped, at its beginning and its end. Both have 0
  // bytes if the whole range is mapped.
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

  // Returns an error if the peer broke the protocol. `memory` is invalid if no descriptor was
  // received.
  absl::Status Take(const WireOffer& offer, Fd memory);
  bool Has(uint64_t id) const { return regions_.count(id) != 0; }
  // Returns the region of an RTS, or null if the region cannot be mapped here. Returns an error if
  // the region was never offered, or if the bytes are not inside it.
  absl::StatusOr<std::shared_ptr<const PeerRegion>> Find(uint64_t id, uint64_t address,
                                                         uint64_t bytes) const;
  absl::Status Forget(uint64_t id);
  void Clear() { regions_.clear(); }

 private:
  std::map<uint64_t, std::shared_ptr<const PeerRegion>> regions_;
};

}  // namespace entrain::shm
