// Copies one message out of the sender's memory, in pieces. Either reads the memory of the sender's
// process, or copies from this process's mapping of the sender's region. This class does not know
// receives or records.
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
  // `address` is the message's address in the sender's address space. `mapped` is its address in
  // this process, or null if the message is not mapped in this process.
  PullTransfer(uint64_t address, const std::byte* mapped) : address_(address), mapped_(mapped) {}

  // The result of one step. kUnreadable, kForbidden and kGone mean the same as in
  // PeerProcess::Read. After each step, the first bytes() bytes of the message have arrived.
  enum class Step { kPiece, kWhole, kUnreadable, kForbidden, kGone };
  // Copies the next piece, of at most `most` bytes, to its position in `into`, the buffer of the
  // whole message. kWhole also means: it is proved that the bytes come from `process`
  // (PeerProcess::ReadMemoryProved).
  Step Copy(const PeerProcess& process, Bytes into, size_t most);
  // Returns the number of bytes copied so far, from the beginning of the message.
  uint64_t bytes() const { return bytes_; }
  bool reads() const { return mapped_ == nullptr; }

 private:
  Step Read(const PeerProcess& process, Bytes piece, bool last);

  uint64_t address_;
  const std::byte* mapped_;
  uint64_t bytes_ = 0;
};

}  // namespace entrain::shm
