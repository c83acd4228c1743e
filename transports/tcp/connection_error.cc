#include "transports/tcp/connection_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain {

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
