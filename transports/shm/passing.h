// Non-blocking transfer of bytes and file descriptors over a Unix socket.
#pragma once

#include <cstddef>
#include <vector>

#include <sys/types.h>

#include "absl/types/span.h"

#include "lib/net/socket.h"

namespace entrain::shm {

constexpr size_t kMaxDescriptors = 2;  // in one message

// Sends like send(2): returns the number of bytes that the socket took, or -1 and errno. Messages
// are so short that the socket takes a whole message or nothing.
ssize_t SendWith(int socket, const void* data, size_t bytes, absl::Span<const int> descriptors);
// Receives like recv(2). Appends the received descriptors, close-on-exec, to `*descriptors`. If
// `descriptors` is null, the kernel discards them. Returns -1 and EMFILE if this process has no
// room for a descriptor.
ssize_t ReceiveWith(int socket, void* data, size_t bytes, std::vector<Fd>* descriptors);

}  // namespace entrain::shm
