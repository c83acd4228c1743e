// Sockets and locked files that a forked child closes. Peers notice the death of a process because
// its connections close and its locks are released. If a forked child held copies of the
// descriptors, the connections and locks would stay. (PyTorch's DataLoader forks its workers.)
// O_CLOEXEC closes descriptors only at exec.
//
// The child only closes its copies: the parent's connections and locks (flock) stay. fork() waits
// while another thread is inside a function of this unit. So in a child, the list of noted
// descriptors (ForkLock::Note) is complete, and all of them are open. After vfork and posix_spawn,
// exec closes the descriptors.
#pragma once

#include <mutex>

#include "lib/net/socket.h"

namespace entrain {

// A thread holds this lock while it opens a descriptor and notes it, and while it closes a noted
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

// Closes a descriptor. If it was noted, holds the lock during the close. Otherwise closes it
// without the lock, because it may be a file on a slow disk. Keeps errno.
void CloseFd(int fd);

}  // namespace entrain
