// The file descriptor on which a transport sleeps: an epoll instance that watches the transport's
// descriptors and one timer. While it polls, a transport reads the important descriptors directly,
// without epoll.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/clock.h"

namespace entrain {

class TimedWait {
 public:
  static absl::StatusOr<std::unique_ptr<TimedWait>> Create();
  ~TimedWait();
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

  // Returns a descriptor that is readable if any added descriptor is ready (level-triggered), or if
  // the timer has run out.
  int fd() const { return epoll_; }
  // Watches `fd` for `events` (EPOLLIN by default; EPOLLERR and EPOLLHUP are always watched).
  absl::Status Add(int fd, uint32_t events = 1);
  absl::Status Change(int fd, uint32_t events);
  void Remove(int fd);
  // Calls `each(fd)` for up to 64 ready descriptors, except the timer. Costs a system call.
  template <typename Each>
  int ForEachReady(Each each) {
    int ready[64];
    const int count = Ready(ready, 64);
    for (int i = 0; i < count; ++i) {
      each(ready[i]);
    }
    return count;
  }
  // Sets the timer to `at`. Makes no system call if the timer is already set to `at`.
  void SetTimer(Deadline at, const Clock& clock);
  void ClearTimer() { SetTimer(Deadline::Never(), Clock::Real()); }

 private:
  TimedWait(int epoll, int timer) : epoll_(epoll), timer_(timer) {}
  int Ready(int* out, int max);

  const int epoll_, timer_;
  Deadline set_;
};

}  // namespace entrain
