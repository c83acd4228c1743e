// Stream sockets with abstract names, for processes of one user on one host (one network
// namespace). There is no file. When the listening socket is closed, its name is free again.
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

// Uses at most kMaxLocalName bytes of `name`. Sets `*bytes` to the length of the address.
sockaddr_un AbstractAddress(absl::string_view name, socklen_t* bytes);

absl::StatusOr<Fd> LocalSocket();
// Returns the next connection, or an invalid Fd if none waits.
absl::StatusOr<Fd> AcceptLocal(int listener);
// Returns a listening socket, or kFailedPrecondition if the name is in use or too long.
absl::StatusOr<Fd> ListenLocal(absl::string_view name, int backlog = 1024);
// Tries once. kUnavailable: no process listens on the name, or the listener's queue is full.
// kFailedPrecondition: a process of another user listens on the name.
absl::StatusOr<Fd> ConnectLocal(absl::string_view name);
// Checks that the other end belongs to this user. kUnavailable: the other end is gone.
absl::Status CheckSameUser(int fd);

}  // namespace entrain
