#include "lib/net/fork_close.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include <pthread.h>
#include <unistd.h>

namespace entrain {
namespace {

struct Noted {
  std::mutex mutex;
  std::vector<bool> open;  // by descriptor
};

// Never destroyed: sockets may be closed, and processes forked, while the program ends.
Noted& TheNoted() {
  static Noted* const noted = new Noted;
  return *noted;
}

// Runs in the child. The child's only thread holds the lock, so the list is complete. This function
// allocates nothing.
void CloseInChild() {
  Noted& noted = TheNoted();
  for (size_t fd = 0; fd < noted.open.size(); ++fd) {
    if (noted.open[fd]) {
      noted.open[fd] = false;
      close(static_cast<int>(fd));
    }
  }
  noted.mutex.unlock();
}

// Registers the fork handlers at the first call. Must be called before the lock is taken: glibc may
// hold a lock of its own while it runs fork handlers.
std::mutex& RegisteredMutex() {
  static const int registered = pthread_atfork(
      +[] { TheNoted().mutex.lock(); }, +[] { TheNoted().mutex.unlock(); }, &CloseInChild);
  (void)registered;  // if memory ran out, children keep inherited descriptors
  return TheNoted().mutex;
}

}  // namespace

ForkLock::ForkLock() : lock_(RegisteredMutex()) {}

void ForkLock::Note(int fd) {
  std::vector<bool>& open = TheNoted().open;
  const auto at = static_cast<size_t>(fd);
  if (fd >= 0) {
    open.resize(std::max(open.size(), at + 1));
    open[at] = true;
  }
}

namespace {

bool CloseIfNoted(int fd) {
  const ForkLock lock;
  std::vector<bool>& open = TheNoted().open;
  const auto at = static_cast<size_t>(fd);
  if (at >= open.size() || !open[at]) {
    return false;
  }
  open[at] = false;
  close(fd);
  return true;
}

}  // namespace

void CloseFd(int fd) {
  const int saved = errno;
  if (!CloseIfNoted(fd)) {
    close(fd);  // still open, so no other thread can have got this number meanwhile
  }
  errno = saved;
}

}  // namespace entrain
