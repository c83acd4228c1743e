// The descriptor a transport sleeps on: an epoll instance over its own descriptors and one timer.
// Sleeping is the only use of epoll here: Poll tries the descriptors that matter directly.
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

  // Readable when any descriptor added is (level-triggered), or the timer has run out.
  int fd() const { return epoll_; }
  // Watches `fd` for `events` (EPOLLIN by default; EPOLLERR and EPOLLHUP are always watched).
  absl::Status Add(int fd, uint32_t events = 1);
  absl::Status Change(int fd, uint32_t events);
  void Remove(int fd);
  // Which descriptors are ready: calls `each(fd)` for up to 64. Costs a system call.
  template <typename Each>
  int ForEachReady(Each each) {
    int ready[64];
    const int count = Ready(ready, 64);
    for (int i = 0; i < count; ++i) {
      each(ready[i]);
    }
    return count;
  }
  // Never() and an instant that is set already cost nothing.
  void SetTimer(Deadline at, const Clock& clock);
  void ClearTimer() { SetTimer(Deadline::Never(), Clock::Real()); }

 private:
  TimedWait(int epoll, int timer) : epoll_(epoll), timer_(timer) {}
  int Ready(int* out, int max);

  const int epoll_, timer_;
  Deadline set_;
};

}  // namespace entrain
