#include "transports/shm/peer_process.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; the C library's headers may be older
#endif

namespace entrain::shm {
namespace {

// Returns a pidfd of the peer. Asks the socket for it (SO_PEERPIDFD) if the kernel supports that.
// Otherwise opens it by the process number, which could meanwhile belong to another process.
Fd OpenDeathFd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return Fd(fd);
  }
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by default
}

PeerProcess::Read Sort(ssize_t result, size_t* got) {
  *got = result > 0 ? static_cast<size_t>(result) : 0;
  if (result > 0) {
    return PeerProcess::Read::kSome;
  }
  if (result == 0 || errno == EFAULT || errno == ENOMEM || errno == EINVAL) {
    return PeerProcess::Read::kUnreadable;
  }
  return errno == ESRCH ? PeerProcess::Read::kGone : PeerProcess::Read::kForbidden;
}

}  // namespace

absl::StatusOr<PeerProcess> PeerProcess::Of(int socket) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    return ErrnoStatus(errno, "asking who the peer is");
  }
  if (who.uid != geteuid()) {
    return absl::UnavailableError(
        absl::StrCat("pid ", who.pid, " belongs to user ", who.uid, ", not to ", geteuid()));
  }
  PeerProcess peer;
  peer.pid_ = who.pid;
  peer.death_ = OpenDeathFd(socket, who.pid);
  if (!peer.death_.valid()) {
    ENTRAIN_LOG(kWarning, "shm: no pidfd of pid ", who.pid, " (", strerror(errno),
                "); its death shows only by the end of its socket");
  }
  return peer;
}

PeerProcess::Read PeerProcess::ReadMemory(uint64_t address, Bytes into, size_t* got) const {
  iovec here{into.data(), into.size()};
  iovec there{reinterpret_cast<void*>(address), into.size()};
  return Sort(process_vm_readv(pid_, &here, 1, &there, 1, 0), got);
}

PeerProcess::Read PeerProcess::ReadMemoryProved(uint64_t address, Bytes into, size_t* got) const {
  Cookie seen{};
  iovec here[2] = {{into.data(), into.size()}, {seen.data(), seen.size()}};
  iovec there[2] = {{reinterpret_cast<void*>(address), into.size()},
                    {reinterpret_cast<void*>(cookie_address_), seen.size()}};
  const Read read = Sort(process_vm_readv(pid_, here, 2, there, 2, 0), got);
  if (read != Read::kSome || *got < into.size()) {
    return read;
  }
  if (*got < into.size() + seen.size() || seen != cookie_) {
    return Read::kGone;
  }
  *got = into.size();
  return read;
}

bool PeerProcess::SetCookie(uint64_t address, const Cookie& cookie) {
  cookie_address_ = address;
  cookie_ = cookie;
  size_t got;
  return pid_ > 0 && ReadMemoryProved(address, {}, &got) == Read::kSome;
}

}  // namespace entrain::shm
