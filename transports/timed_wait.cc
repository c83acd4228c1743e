#include "transports/timed_wait.h"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<TimedWait>> TimedWait::Create() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    return ErrnoStatus(errno, "epoll_create1");
  }
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer < 0) {
    const absl::Status status = ErrnoStatus(errno, "timerfd_create");
    close(epoll);
    return status;
  }
  std::unique_ptr<TimedWait> wait(new TimedWait(epoll, timer));
  ENTRAIN_RETURN_IF_ERROR(wait->Add(timer));
  return wait;
}

TimedWait::~TimedWait() {
  close(timer_);
  close(epoll_);
}

absl::Status TimedWait::Add(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0 ? absl::OkStatus()
                                                           : ErrnoStatus(errno, "epoll_ctl add");
}

absl::Status TimedWait::Change(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0 ? absl::OkStatus()
                                                           : ErrnoStatus(errno, "epoll_ctl change");
}

void TimedWait::Remove(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

int TimedWait::Ready(int* out, int max) {
  epoll_event events[64];
  const int count = epoll_wait(epoll_, events, std::min(max, 64), 0);
  int ready = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd != timer_) {
      out[ready++] = events[i].data.fd;
    }
  }
  return ready;
}

void TimedWait::SetTimer(Deadline at, const Clock& clock) {
  if (at.at_ns == set_.at_ns) {
    return;
  }
  set_ = at;
  itimerspec when{};
  if (at.at_ns != Deadline::Never().at_ns) {
    const int64_t left = std::max<int64_t>(at.Left(clock.Now()), 1);  // 0 would disarm
    when.it_value.tv_sec = left / kSecond;
    when.it_value.tv_nsec = left % kSecond;
  }
  timerfd_settime(timer_, 0, &when, nullptr);
}

}  // namespace entrain
