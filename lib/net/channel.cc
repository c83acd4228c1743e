#include "lib/net/channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain {

ssize_t Channel::Receive(iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return tls_->Receive(parts, static_cast<int>(count));
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return recvmsg(fd_.get(), &message, MSG_DONTWAIT);
}

ssize_t Channel::Send(iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return tls_->Send(parts, static_cast<int>(count));
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t Channel::Discard(size_t bytes) {
  if (tls_ == nullptr) {
    return recv(fd_.get(), nullptr, bytes, MSG_DONTWAIT | MSG_TRUNC);
  }
  char nowhere[16 << 10];
  return Receive(nowhere, std::min(bytes, sizeof(nowhere)));
}

absl::StatusOr<size_t> ReadSome(Channel& from, void* out, size_t bytes) {
  if (from.tls() == nullptr) {
    return ReadSome(from.fd(), out, bytes);
  }
  const ssize_t got = bytes > 0 ? from.Receive(out, bytes) : -1;
  if (got == 0) {
    return absl::UnavailableError("closed by the other side");
  }
  if (got < 0 && bytes > 0 && errno != EAGAIN) {
    return TransferError(errno, "receiving");
  }
  return got > 0 ? static_cast<size_t>(got) : 0;
}

absl::StatusOr<size_t> WriteSome(Channel& to, const void* in, size_t bytes) {
  if (to.tls() == nullptr) {
    return WriteSome(to.fd(), in, bytes);
  }
  const ssize_t put = to.Send(in, bytes);
  if (put < 0 && errno != EAGAIN) {
    return TransferError(errno, "sending");
  }
  return put > 0 ? static_cast<size_t>(put) : 0;
}

absl::Status ReadFull(Channel& from, void* out, size_t bytes, const Stop& stop) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(const size_t got, ReadSome(from, at, bytes));
    at += got;
    bytes -= got;
    if (got == 0) {
      ENTRAIN_RETURN_IF_ERROR(WaitFd(from.fd(), POLLIN, stop, "receiving"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteFull(Channel& to, const void* in, size_t bytes, const Stop& stop) {
  const auto* at = static_cast<const char*>(in);
  while (bytes > 0 || to.unsent()) {
    size_t put = 0;
    if (bytes > 0) {
      ENTRAIN_ASSIGN_OR_RETURN(put, WriteSome(to, at, bytes));
    } else if (!to.Flush()) {
      return TransferError(errno, "sending");
    }
    at += put;
    bytes -= put;
    if (put == 0 && (bytes > 0 || to.unsent())) {
      ENTRAIN_RETURN_IF_ERROR(WaitFd(to.fd(), POLLOUT, stop, "sending"));
    }
  }
  return absl::OkStatus();
}

absl::Status ConnectionError(int error, absl::string_view doing) {
  Blame blame;
  blame.sys_errno = error;
  const auto say = [&](absl::string_view what, absl::string_view more = "") {
    return WithBlame(absl::UnavailableError(absl::StrCat(doing, ": ", what, more)), blame);
  };
  switch (error) {
    case ECONNRESET:
      return say(
          "the connection was reset by the network or by the peer's host; whether its process "
          "lives is unknown");
    case ECONNABORTED:
      return say(
          "the connection was ended by somebody on this host; whether the peer's process lives is "
          "unknown");
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return say("its host has vanished: nothing answers there any more: ", std::strerror(error));
    case EBADMSG:
      return say(kAltered);
    default:
      return ErrnoStatus(error, doing);
  }
}

bool IsFatal(int error) {
  return error != EAGAIN && error != EWOULDBLOCK && error != EINTR;
}

}  // namespace entrain
