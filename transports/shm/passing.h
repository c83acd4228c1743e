// Bytes with descriptors over a Unix socket, without blocking.
#pragma once

#include <cstddef>
#include <vector>

#include <sys/types.h>

#include "absl/types/span.h"

#include "lib/net/socket.h"

namespace entrain::shm {

constexpr size_t kMaxDescriptors = 2;  // in one message

// As send: what the socket took, or -1 and errno. All of it or nothing, for the few bytes that are
// sent here.
ssize_t SendWith(int socket, const void* data, size_t bytes, absl::Span<const int> descriptors);
// As recv. Descriptors that came along are appended, close-on-exec; with null the kernel throws
// them away. -1 and EMFILE when this process has no room for one that came.
ssize_t ReceiveWith(int socket, void* data, size_t bytes, std::vector<Fd>* descriptors);

}  // namespace entrain::shm
