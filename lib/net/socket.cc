#include "lib/net/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/fork_close.h"
#include "lib/net/keep_alive.h"

namespace entrain {
namespace {

constexpr int64_t kSliceNs = 20 * kMillisecond;

void SetNoDelay(int fd) {
  // Small messages depend on latency. A failure only costs time, so it is not an error.
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

absl::StatusOr<Fd> NewSocket(int family) {
  Fd fd = OpenClosedOnFork(
      [&] { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!fd.valid()) {
    return ErrnoStatus(errno, "cannot create a socket");
  }
  return fd;
}

absl::Status ConnectError(int error, const Address& to) {
  // Every reason (refused, unreachable, reset) means that the other side cannot be reached.
  return absl::UnavailableError(
      absl::StrCat("cannot connect to ", to.ToString(), ": ", std::strerror(error)));
}

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// Returns true if `error` is a shortage of this process.
bool IsShortage(int error) {
  return error == ENOMEM || error == ENOBUFS;
}

}  // namespace

absl::Status TransferError(int error, absl::string_view what) {
  if (IsShortage(error)) {
    return ErrnoStatus(error, what);
  }
  if (error == EBADMSG) {
    return absl::UnavailableError(absl::StrCat(what, ": ", kAltered));
  }
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

void Fd::Reset(int fd) {
  if (fd_ >= 0) {
    CloseFd(fd_);
  }
  fd_ = fd;
}

absl::StatusOr<Fd> Listen(const Address& address, int backlog) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, NewSocket(address.family()));
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd.get(), address.raw(), address.raw_bytes()) != 0 || listen(fd.get(), backlog) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("cannot listen on ", address.ToString());
    if (error == EADDRINUSE) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": the port is in use"));
    }
    if (error == EADDRNOTAVAIL || error == EACCES) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
    }
    return ErrnoStatus(error, what);
  }
  return fd;
}

absl::StatusOr<Fd> Accept(int listener, Address* from) {
  sockaddr_storage raw;
  socklen_t bytes = sizeof(raw);
  Fd fd = OpenClosedOnFork([&] {
    return accept4(listener, reinterpret_cast<sockaddr*>(&raw), &bytes,
                   SOCK_CLOEXEC | SOCK_NONBLOCK);
  });
  if (!fd.valid()) {
    // If a connection died while it waited to be accepted, that is no error of the listener.
    if (WouldBlock(errno) || errno == ECONNABORTED || errno == EPROTO) {
      return Fd();
    }
    return ErrnoStatus(errno, "cannot accept a connection");
  }
  SetNoDelay(fd.get());
  if (from != nullptr) {
    *from = Address(reinterpret_cast<const sockaddr*>(&raw), bytes);
  }
  return fd;
}

absl::StatusOr<Fd> StartConnect(const Address& to) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, NewSocket(to.family()));
  SetNoDelay(fd.get());
  if (connect(fd.get(), to.raw(), to.raw_bytes()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return ConnectError(errno, to);
  }
  return fd;
}

absl::Status FinishConnect(int fd, const Address& to) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
    error = errno;
  }
  if (error != 0) {
    return ConnectError(error, to);
  }
  // If a client dials a port of the ephemeral range on which no process listens, the kernel may
  // bind the client's socket to the same port. The client then connects to itself.
  const auto local = LocalAddress(fd), remote = RemoteAddress(fd);
  if (local.ok() && remote.ok() && local->ToString() == remote->ToString()) {
    return ConnectError(ECONNREFUSED, to);
  }
  return absl::OkStatus();
}

absl::StatusOr<Fd> Connect(const Address& to, const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, StartConnect(to));
  ENTRAIN_RETURN_IF_ERROR(
      WaitFd(fd.get(), POLLOUT, stop, absl::StrCat("connecting to ", to.ToString())));
  ENTRAIN_RETURN_IF_ERROR(FinishConnect(fd.get(), to));
  ProbeWhenIdle(fd.get(), KeepAliveSetting());
  return fd;
}

absl::StatusOr<Address> LocalAddress(int fd) {
  sockaddr_storage raw;
  socklen_t bytes = sizeof(raw);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&raw), &bytes) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  return Address(reinterpret_cast<const sockaddr*>(&raw), bytes);
}

absl::StatusOr<Address> RemoteAddress(int fd) {
  sockaddr_storage raw;
  socklen_t bytes = sizeof(raw);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&raw), &bytes) != 0) {
    return TransferError(errno, "getpeername");
  }
  return Address(reinterpret_cast<const sockaddr*>(&raw), bytes);
}

absl::StatusOr<size_t> ReadSome(int fd, void* out, size_t bytes) {
  if (bytes == 0) {
    return size_t{0};
  }
  const ssize_t got = recv(fd, out, bytes, MSG_DONTWAIT);
  if (got > 0) {
    return static_cast<size_t>(got);
  }
  if (got == 0) {
    return absl::UnavailableError("closed by the other side");
  }
  if (WouldBlock(errno)) {
    return size_t{0};
  }
  return TransferError(errno, "receiving");
}

absl::StatusOr<size_t> WriteSome(int fd, const void* in, size_t bytes) {
  const ssize_t put = send(fd, in, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put >= 0) {
    return static_cast<size_t>(put);
  }
  if (WouldBlock(errno)) {
    return size_t{0};
  }
  return TransferError(errno, "sending");
}

absl::Status CheckStop(const Stop& stop, absl::string_view what) {
  if (stop.Cancelled()) {
    return absl::AbortedError(absl::StrCat(what, ": cancelled"));
  }
  if (stop.deadline.Passed(Clock::Real().Now())) {
    return absl::DeadlineExceededError(absl::StrCat(what, ": the time is up"));
  }
  return absl::OkStatus();
}

int StopSliceMs(const Stop& stop) {
  const int64_t left = std::min(kSliceNs, stop.deadline.Left(Clock::Real().Now()));
  return static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

Stop Sooner(const Stop& stop, int64_t ns) {
  return {std::min(stop.deadline, Deadline::After(ns)), stop.cancelled};
}

bool Pause(int ms, const Stop& stop) {
  for (int slept = 0; slept < ms && CheckStop(stop, "").ok();) {
    const int slice = std::max(1, std::min(StopSliceMs(stop), ms - slept));
    poll(nullptr, 0, slice);
    slept += slice;
  }
  return CheckStop(stop, "").ok();
}

absl::Status WaitFd(int fd, short events, const Stop& stop, absl::string_view what) {
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, what));
    pollfd waited{fd, events, 0};
    const int ready = poll(&waited, 1, StopSliceMs(stop));
    if (ready > 0) {
      return absl::OkStatus();
    }
    if (ready < 0 && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat(what, ": poll"));
    }
  }
}

absl::Status ReadFull(int fd, void* out, size_t bytes, const Stop& stop) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(const size_t got, ReadSome(fd, at, bytes));
    at += got;
    bytes -= got;
    if (got == 0) {
      ENTRAIN_RETURN_IF_ERROR(WaitFd(fd, POLLIN, stop, "receiving"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteFull(int fd, const void* in, size_t bytes, const Stop& stop) {
  const auto* at = static_cast<const char*>(in);
  while (bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(const size_t put, WriteSome(fd, at, bytes));
    at += put;
    bytes -= put;
    if (put == 0) {
      ENTRAIN_RETURN_IF_ERROR(WaitFd(fd, POLLOUT, stop, "sending"));
    }
  }
  return absl::OkStatus();
}

std::string ReadIpSetting(absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/sys/net/ipv4/", name));
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace entrain
