#include "lib/net/local_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/fork_close.h"

namespace entrain {
absl::StatusOr<Fd> LocalSocket() {
  Fd fd = OpenClosedOnFork(
      [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) {
    return ErrnoStatus(errno, "cannot create a Unix socket");
  }
  return fd;
}

absl::StatusOr<Fd> AcceptLocal(int listener) {
  Fd fd = OpenClosedOnFork(
      [&] { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (!fd.valid() && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    return ErrnoStatus(errno, "accepting on a Unix socket");
  }
  return fd;
}

// A leading zero byte makes the name abstract.
sockaddr_un AbstractAddress(absl::string_view name, socklen_t* bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t taken = std::min(name.size(), kMaxLocalName);
  std::memcpy(address.sun_path + 1, name.data(), taken);
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + taken);
  return address;
}

absl::StatusOr<Fd> ListenLocal(absl::string_view name, int backlog) {
  if (name.size() > kMaxLocalName) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on \"", name, "\": more than ", kMaxLocalName, " bytes"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, LocalSocket());
  socklen_t bytes = 0;
  const sockaddr_un address = AbstractAddress(name, &bytes);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      listen(fd.get(), backlog) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("cannot listen on \"", name, "\"");
    return error == EADDRINUSE
               ? absl::FailedPreconditionError(absl::StrCat(what, ": the name is in use"))
               : ErrnoStatus(error, what);
  }
  return fd;
}

absl::StatusOr<Fd> ConnectLocal(absl::string_view name) {
  ENTRAIN_ASSIGN_OR_RETURN(Fd fd, LocalSocket());
  socklen_t bytes = 0;
  const sockaddr_un address = AbstractAddress(name, &bytes);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot connect to \"", name, "\": ", std::strerror(errno)));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckSameUser(fd.get()));
  return fd;
}

absl::Status CheckSameUser(int fd) {
  ucred other{};
  socklen_t bytes = sizeof(other);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0) {
    return absl::UnavailableError(absl::StrCat("who is there: ", std::strerror(errno)));
  }
  if (other.uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the other end is user ", other.uid, "'s, not user ", geteuid(), "'s"));
  }
  return absl::OkStatus();
}

}  // namespace entrain
