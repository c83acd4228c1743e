#include "transports/shm/passing.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace entrain::shm {

ssize_t SendWith(int socket, const void* data, size_t bytes, absl::Span<const int> descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  const size_t fd_bytes = descriptors.size() * sizeof(int);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_bytes);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fd_bytes);
    std::memcpy(CMSG_DATA(head), descriptors.data(), fd_bytes);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t ReceiveWith(int socket, void* data, size_t bytes, std::vector<Fd>* descriptors) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 || descriptors == nullptr) {
    return got;
  }
  const size_t before = descriptors->size();
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
        int fd;
        std::memcpy(&fd, reinterpret_cast<char*>(head) + at, sizeof(fd));
        descriptors->emplace_back(fd);
      }
    }
  }
  // `control` had room for kMaxDescriptors descriptors. So the kernel dropped a descriptor for
  // another reason: this process has reached its limit of descriptors.
  if ((message.msg_flags & MSG_CTRUNC) != 0 && descriptors->size() - before < kMaxDescriptors) {
    errno = EMFILE;
    return -1;
  }
  return got;
}

}  // namespace entrain::shm
