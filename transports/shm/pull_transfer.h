// One message that is copied out of the sender's memory, in pieces: by reading that process, or from
// memory of it that is mapped here. Knows neither receives nor records.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/bytes.h"
#include "transports/shm/peer_process.h"

namespace entrain::shm {

class PullTransfer {
 public:
  // Of the message at `address` in the sender. `mapped`: the place of the message in this process; null: not mapped.
  PullTransfer(uint64_t address, const std::byte* mapped) : address_(address), mapped_(mapped) {}

  // What one step gave. kUnreadable, kForbidden, kGone: as PeerProcess::Read; bytes() are here.
  enum class Step { kPiece, kWhole, kUnreadable, kForbidden, kGone };
  // Copies the next piece, of at most `most` bytes, to its place in `into`, the buffer of the whole message. `cold`:
  // past the caches, where that is possible. Before kWhole is returned, `process` has proved that it is the peer.
  Step Copy(const PeerProcess& process, Bytes into, size_t most, bool cold);
  // The bytes from the beginning that have been copied.
  uint64_t bytes() const { return bytes_; }
  bool reads() const { return mapped_ == nullptr; }

 private:
  Step Read(const PeerProcess& process, Bytes piece, bool last);

  uint64_t address_;
  const std::byte* mapped_;
  uint64_t bytes_ = 0;
};

}  // namespace entrain::shm
