// The peer's memory that this process has mapped, to read messages where they lie. The peer offers
// a region by its descriptor over the Unix socket, before the first RTS that names it, and
// says through the ring when it is gone.
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

// Stays mapped while anybody holds it. Empty memory: it could not be mapped here.
struct PeerRegion {
  // In the peer. What of [address, address + bytes) is not mapped has room before and behind the mapping.
  uint64_t address = 0, bytes = 0, mapped_address = 0;
  SealedMemory memory;

  std::byte* At(uint64_t address_there) const {
    return memory.data() +
           (static_cast<int64_t>(address_there) - static_cast<int64_t>(mapped_address));
  }
  struct Range {
    uint64_t address, bytes;
  };
  // What of a range is not mapped: its beginning, its end; 0 bytes: all of it is.
  std::array<Range, 2> Unmapped(uint64_t from, uint64_t count) const;
  bool Maps(uint64_t from, uint64_t count) const {
    const auto [head, tail] = Unmapped(from, count);
    return head.bytes + tail.bytes == 0;
  }
};

class PeerRegions {
 public:
  static constexpr size_t kMost = 1 << 16;  // offered at a time; more is a breach of protocol

  // An error: the peer broke the protocol. An invalid descriptor: none came through.
  absl::Status Take(const WireOffer& offer, Fd memory);
  bool Has(uint64_t id) const { return regions_.count(id) != 0; }
  // The region of an RTS; null: it cannot be mapped here. An error: it was never offered,
  // or the bytes do not lie in it.
  absl::StatusOr<std::shared_ptr<const PeerRegion>> Find(uint64_t id, uint64_t address,
                                                         uint64_t bytes) const;
  absl::Status Forget(uint64_t id);
  void Clear() { regions_.clear(); }

 private:
  std::map<uint64_t, std::shared_ptr<const PeerRegion>> regions_;
};

}  // namespace entrain::shm
