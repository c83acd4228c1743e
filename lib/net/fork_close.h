// Sockets and locked files that a forked child closes. A peer notices the death of a process by the
// end of its connections or locks. A forked child that holds copies of the descriptors would delay
// this end. (PyTorch's DataLoader forks its workers.) O_CLOEXEC helps only with exec.
//
// The child only closes its copies: the parent's connections and locks (flock) stay. fork() waits
// while another thread is inside a function of this unit. So a child's list of noted descriptors is
// always complete, and has no closed ones. vfork and posix_spawn need no such care, because exec
// closes the descriptors.
#pragma once

#include <mutex>

#include "lib/net/socket.h"

namespace entrain {

// A thread holds this lock while it opens and notes a descriptor, or forgets and closes a
// descriptor. fork() holds the lock for its whole duration.
class ForkLock {
 public:
  ForkLock();
  // Makes children close `fd`, until CloseFd(fd) is called. Ignores -1.
  void Note(int fd);

 private:
  std::lock_guard<std::mutex> lock_;
};

// Runs `open`, which returns a new descriptor or -1 with errno, and notes the descriptor.
template <typename Open>
Fd OpenClosedOnFork(Open open) {
  ForkLock lock;
  const int fd = open();
  lock.Note(fd);
  return Fd(fd);
}

// Closes a descriptor, noted or not. Closes a noted descriptor under the lock, and other
// descriptors without the lock, because they may be files on a slow disk. Keeps errno.
void CloseFd(int fd);

}  // namespace entrain
