// Copies one message out of the sender's memory in pieces: reads the memory of the sender's
// process, or copies from a mapping of it in this process. The class knows neither receives nor
// records.
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
  // `address` is the message's address in the sender. `mapped` is its address in this process, or
  // null if the message is not mapped here.
  PullTransfer(uint64_t address, const std::byte* mapped) : address_(address), mapped_(mapped) {}

  // The result of one step. kUnreadable, kForbidden and kGone are as in PeerProcess::Read; the
  // first bytes() bytes have arrived.
  enum class Step { kPiece, kWhole, kUnreadable, kForbidden, kGone };
  // Copies the next piece, of at most `most` bytes, to its place in `into`, the buffer of the whole
  // message. Returns kWhole only if `process` has proved that it is the peer.
  Step Copy(const PeerProcess& process, Bytes into, size_t most);
  // Returns the number of bytes copied so far, counted from the beginning.
  uint64_t bytes() const { return bytes_; }
  bool reads() const { return mapped_ == nullptr; }

 private:
  Step Read(const PeerProcess& process, Bytes piece, bool last);

  uint64_t address_;
  const std::byte* mapped_;
  uint64_t bytes_ = 0;
};

}  // namespace entrain::shm
