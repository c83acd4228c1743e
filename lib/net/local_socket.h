// Stream sockets with abstract names: for processes of one user on one host (one network
// namespace). No file; a name is gone with the socket that listens on it.
#pragma once

#include <string>

#include <sys/un.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/net/socket.h"

namespace entrain {

constexpr size_t kMaxLocalName = sizeof(sockaddr_un::sun_path) - 1;

// At most kMaxLocalName bytes of `name`; its length goes to `bytes`.
sockaddr_un AbstractAddress(absl::string_view name, socklen_t* bytes);

absl::StatusOr<Fd> LocalSocket();
// The next connection; an invalid Fd when there is none now.
absl::StatusOr<Fd> AcceptLocal(int listener);
// A name that somebody listens on, or one too long: kFailedPrecondition.
absl::StatusOr<Fd> ListenLocal(absl::string_view name, int backlog = 1024);
// Once: nobody listens there, or its queue is full: kUnavailable. Another user does:
// kFailedPrecondition.
absl::StatusOr<Fd> ConnectLocal(absl::string_view name);
// Whether the other end is of this user; kUnavailable when it is gone.
absl::Status CheckSameUser(int fd);

}  // namespace entrain
