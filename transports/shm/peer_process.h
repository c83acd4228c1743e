// The process at the other end of a Unix socket. This class detects the process's death and reads
// its memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/net/socket.h"

namespace entrain::shm {

// Random bytes that a process keeps in its memory for its peers to read.
using Cookie = std::array<uint8_t, 16>;

class PeerProcess {
 public:
  PeerProcess() = default;
  // Returns the peer process. The identity comes from the kernel, so the peer cannot forge it.
  // Returns UNAVAILABLE for a process of another user. If there are no pidfds (before Linux 5.3, or
  // if they are forbidden), logs a warning and continues. The peer's death then shows only by the
  // end of the socket.
  static absl::StatusOr<PeerProcess> Of(int socket);

  pid_t pid() const { return pid_; }
  // Closes death_fd.
  void Forget() { death_.Reset(); }
  // Returns a descriptor that is readable once the process is dead, or -1 without pidfds.
  int death_fd() const { return death_.get(); }

  // The result of one attempt to read the process's memory.
  enum class Read {
    kSome,        // `*got` bytes were read
    kForbidden,   // this process may never read the peer's memory
    kUnreadable,  // the memory at this address cannot be read
    kGone,        // the process is gone, or its number now belongs to another process
  };
  Read ReadMemory(uint64_t address, Bytes into, size_t* got) const;
  // Does the same as ReadMemory. If it fills all of `into`, the same system call has also proved
  // that the bytes come from the process with the cookie. The proof is necessary because another
  // process may have got the process number meanwhile.
  Read ReadMemoryProved(uint64_t address, Bytes into, size_t* got) const;

  // Sets the address of the cookie in the process. Returns false if the cookie cannot be read
  // there. This process can then read no memory of the peer.
  bool SetCookie(uint64_t address, const Cookie& cookie);

 private:
  pid_t pid_ = 0;
  Fd death_;
  uint64_t cookie_address_ = 0;
  Cookie cookie_{};
};

}  // namespace entrain::shm
