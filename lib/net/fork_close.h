// Sockets, and locked files, that a forked child closes. A peer learns of a process's death by the end of its
// connections, or of its locks, and a child that holds copies of them (PyTorch's DataLoader forks its workers) would keep
// that end away. O_CLOEXEC helps only with exec.
//
// The child only closes: the parent's connections and locks (flock) go on. fork() waits while another thread is inside one
// of these functions, so no child is born with a descriptor that is open and not yet noted, or closed and still noted.
// vfork and posix_spawn need nothing, as exec closes the descriptors.
#pragma once

#include <mutex>

#include "lib/net/socket.h"

namespace entrain {

// Held while a descriptor is opened and noted, or forgotten and closed; and by fork() for its duration.
class ForkLock {
 public:
  ForkLock();
  // Children close `fd` from now on, until CloseFd(fd). -1 is ignored.
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

// Closes any descriptor: under the lock if it was noted, else not, as it may be a file on a slow disk. errno is kept.
void CloseFd(int fd);

}  // namespace entrain
