#include "tools/outlet.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

constexpr size_t kStep = 64 << 10;

size_t LinesIn(absl::string_view text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Returns the number of bytes written, or a negative number for an error that waiting does not
// cure.
ssize_t WriteOnce(int to, const std::string& text, size_t from) {
  while (true) {
    const ssize_t put = write(to, text.data() + from, text.size() - from);
    if (put >= 0 || (errno != EINTR && errno != EAGAIN)) {
      return put;
    }
    if (errno == EAGAIN) {  // the parent process made the descriptor non-blocking
      pollfd ready{to, POLLOUT, 0};
      poll(&ready, 1, -1);
    }
  }
}

}  // namespace

struct Outlet::State {
  explicit State(int descriptor)
      : to(descriptor), progress(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const int to;
  const Fd progress;
  std::mutex mutex;
  std::condition_variable more;
  std::string text;  // bytes that the thread has not taken yet
  // Of `text`, and of the bytes that the thread has taken but not written.
  size_t waiting = 0, waiting_lines = 0;
  Loss lost;
  bool closed = false;
};

Outlet::Outlet(int to) : state_(std::make_shared<State>(to)) {
  std::thread([state = state_] { WriteAll(state); }).detach();
}

Outlet::~Outlet() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->closed = true;
  state_->more.notify_one();
}

void Outlet::WriteAll(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    state->more.wait(lock, [&] { return state->closed || !state->text.empty(); });
    if (state->closed) {
      return;
    }
    const std::string taken = state->text.substr(0, kStep);
    state->text.erase(0, taken.size());
    for (size_t done = 0; done < taken.size();) {
      lock.unlock();
      const ssize_t put = WriteOnce(state->to, taken, done);
      const int error = errno;
      lock.lock();
      const size_t over = put < 0 ? taken.size() - done : static_cast<size_t>(put);
      const size_t lines = LinesIn(absl::string_view(taken).substr(done, over));
      if (put < 0) {
        state->lost.bytes += over;
        state->lost.lines += lines;
        state->lost.error = error;
      }
      done += over;
      state->waiting -= over;
      state->waiting_lines -= lines;
      eventfd_write(state->progress.get(), 1);
    }
  }
}

void Outlet::Add(absl::string_view text) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->text.append(text.data(), text.size());
  state_->waiting += text.size();
  state_->waiting_lines += LinesIn(text);
  state_->more.notify_one();
}

size_t Outlet::waiting() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->waiting;
}

int Outlet::progress_fd() const {
  return state_->progress.get();
}

void Outlet::ForgetProgress() {
  eventfd_t count = 0;
  eventfd_read(state_->progress.get(), &count);
}

bool Outlet::Drain(int64_t quiet_ns, int interrupted) {
  Deadline by = Deadline::After(quiet_ns);
  while (waiting() > 0) {
    pollfd waited[] = {{progress_fd(), POLLIN, 0}, {interrupted, POLLIN, 0}};
    const int64_t left_ms = by.Left(Clock::Real().Now()) / kMillisecond + 1;
    const int ready = poll(waited, 2, static_cast<int>(left_ms));
    if (ready > 0 && waited[0].revents != 0) {
      by = Deadline::After(quiet_ns);
      ForgetProgress();
    } else if (waited[1].revents != 0 || by.Passed(Clock::Real().Now())) {
      return waiting() == 0;
    }
  }
  return true;
}

Outlet::Loss Outlet::lost(bool waiting) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  Loss all = state_->lost;
  if (waiting) {
    all.bytes += state_->waiting;
    all.lines += state_->waiting_lines;
  }
  return all;
}

bool SameFile(int a, int b) {
  struct stat of_a, of_b;
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace entrain
