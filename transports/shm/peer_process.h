// The process at the other end of a Unix socket: whether it lives, and reading its memory.
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

// Random bytes that a process keeps in its memory for others to find.
using Cookie = std::array<uint8_t, 16>;

class PeerProcess {
 public:
  PeerProcess() = default;
  // As the kernel knows it; the peer has no say in it. Of another user: UNAVAILABLE. Without pidfds
  // (before Linux 5.3, or forbidden) says so in the log and goes on: the end of the socket is then
  // the only sign of death.
  static absl::StatusOr<PeerProcess> Of(int socket);

  pid_t pid() const { return pid_; }
  // Readable once the process is dead; -1: not to be had.
  int death_fd() const { return death_.get(); }

  // What one attempt to read its memory gave.
  enum class Read {
    kSome,        // `*got` bytes
    kForbidden,   // this process may not, ever
    kUnreadable,  // not this memory
    kGone,        // there is no such process, or it is another one
  };
  Read ReadMemory(uint64_t address, Bytes into, size_t* got) const;
  // The same, and when all of `into` came, the same system call has also shown that it came from
  // the process that holds the cookie: its number may belong to another process by now.
  Read ReadMemoryProved(uint64_t address, Bytes into, size_t* got) const;

  // Where that process keeps its cookie. False: it cannot be read there, so nothing can.
  bool SetCookie(uint64_t address, const Cookie& cookie);

 private:
  pid_t pid_ = 0;
  Fd death_;
  uint64_t cookie_address_ = 0;
  Cookie cookie_{};
};

}  // namespace entrain::shm
