#include "lib/engine/driver_seat.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>
#include <utility>

#include <linux/futex.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/library_thread.h"
#include "lib/base/status.h"
#include "lib/engine/backoff.h"

namespace entrain {
namespace {

constexpr int kTurnsPerGiveUpCheck = 16;

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t ns) {
  timespec t{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &t, nullptr,
          0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

bool Add(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

DriverSeat::DriverSeat(Polled& polled, const SeatOptions& options)
    : polled_(polled),
      clock_(*options.clock),
      own_thread_(options.own_thread),
      longest_nap_ns_(options.longest_nap_ns) {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_fd_ < 0 || wake_fd_ < 0 || !Add(epoll_fd_, wake_fd_)) {
    status_ = ErrnoStatus(errno, "the engine cannot create its descriptors");
  }
}

DriverSeat::~DriverSeat() {
  close(epoll_fd_);
  close(wake_fd_);
}

absl::Status DriverSeat::Watch(int fd, absl::string_view name) {
  return Add(epoll_fd_, fd) ? absl::OkStatus()
                            : ErrnoStatus(errno, absl::StrCat("the engine cannot watch ", name));
}

void DriverSeat::Start() {
  if (own_thread_) {
    // Blocks all signals in the new thread, so that the program's own threads handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = LibraryThread([this] { ThreadMain(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "entrain");
  }
}

void DriverSeat::Close() {
  stopping_.store(true, std::memory_order_release);
  WakeThread();
  WakeDriver();
  if (thread_.joinable()) {
    thread_.join();
  }
  while (!TryTake(kCaller)) {
    sched_yield();
  }
}

// ---- Which thread drives

bool DriverSeat::TryTake(Driver who) {
  int expected = kFree;
  // Acquire: pairs with the release in Leave and ThreadDrives. So this driver sees what the driver
  // before wrote.
  return driver_.load(std::memory_order_relaxed) == kFree &&
         driver_.compare_exchange_strong(expected, who, std::memory_order_acquire,
                                         std::memory_order_relaxed);
}

void DriverSeat::Leave() {
  if (std::exchange(flush_, false)) {
    Turn();
  }
  driver_.store(kFree, std::memory_order_release);
  // B. Either a registering waiter sees that no thread drives, or this thread sees that the waiter
  // is registered and wakes it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (WakeOneWaiter()) {
    return;
  }
  // Tests stopping_ too, because this driver may have drained the bytes by which Close woke the
  // engine's thread.
  if (open_works_.load(std::memory_order_relaxed) > 0 || !jobs_.Empty() ||
      stopping_.load(std::memory_order_relaxed)) {
    WakeThread();
  }
  if (!own_thread_) {
    Kick();  // otherwise no thread would run a job that was submitted after the last Turn
  }
}

void DriverSeat::Stay(const Work& work) {
  DriveUntil(work, Deadline::Never(), /*background=*/false);
  Leave();
}

void DriverSeat::PollOnce() {
  if (TryTake(kCaller)) {
    Turn();
    if (!own_thread_) {
      polled_.CheckDeadlines();  // no other thread checks them
    }
    Leave();
  }
}

bool DriverSeat::TakeIfQuiet() {
  if (open_works_.load(std::memory_order_relaxed) > 0 || !jobs_.Empty() || !TryTake(kCaller)) {
    return false;
  }
  // Turn disarms the objects. While they are armed, peers send a wake-up with every message. A Turn
  // is also needed now and then to answer queries of peers.
  if (armed_ || ++quiet_takes_ % kQuietTakesPerTurn == 0) {
    Turn();
  }
  return true;
}

DriverSeat::Standing DriverSeat::Look() const {
  return {driver_.load(std::memory_order_relaxed) != kFree,
          driver_sleeps_.load(std::memory_order_relaxed),
          thread_sleeps_.load(std::memory_order_relaxed),
          waiter_count_.load(std::memory_order_relaxed)};
}

// ---- Jobs and turns

void DriverSeat::Submit(Job* job) {
  jobs_.Push(job);
  // A. Either the other thread sees the job before it sleeps, or this thread sees that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (driver_sleeps_.load(std::memory_order_relaxed) ||
      thread_sleeps_.load(std::memory_order_relaxed)) {
    WakeDriver();
  }
}

void DriverSeat::Kick() {
  // If another thread drives, it normally runs the job. But it may have looked at the queue just
  // before the job came, and then have left. So the loop tries again until the queue is empty or
  // another thread drives.
  while (!jobs_.Empty() && TryTake(kCaller)) {
    Turn();
    Leave();
  }
}

void DriverSeat::RunInDriver(absl::AnyInvocable<void()> body) {
  class Once final : public Job, public Work {
   public:
    Once(DriverSeat* seat, absl::AnyInvocable<void()> what)
        : Work(nullptr), seat_(seat), body_(std::move(what)) {}
    void Run() override {
      body_();
      Finish(absl::OkStatus());
      seat_->WakeWaiters(this);
      Release();
    }

   private:
    DriverSeat* const seat_;
    absl::AnyInvocable<void()> body_;
  };
  auto work = RefPtr<Once>::Adopt(new Once(this, std::move(body)));
  work->AddRef();
  Submit(work.get());
  Await(*work, Deadline::Never(), false);
}

int DriverSeat::Turn() {
  int events = 0;
  armed_ = false;
  while (MpscNode* node = jobs_.Pop()) {
    static_cast<Job*>(node)->Run();
    ++events;
  }
  events += polled_.Poll();
  if (++turns_ % kTurnsPerDeadlineCheck == 0) {
    polled_.CheckDeadlines();
  }
  return events;
}

// ---- A caller that waits

bool DriverSeat::Await(const Work& work, Deadline give_up, bool background) {
  bool slept = false;
  while (!work.done()) {
    if (TryTake(kCaller)) {
      DriveUntil(work, give_up, background);
      Leave();
      slept = false;
    } else {
      SleepAsWaiter(work, give_up);
      slept = true;
    }
    if (!work.done() && give_up.Passed(clock_.Now())) {
      break;
    }
  }
  if (slept) {
    // B. The wake-up may have been meant for this thread as the next driver. This thread no longer
    // drives, so it wakes another thread.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (driver_.load(std::memory_order_relaxed) == kFree && !WakeOneWaiter() &&
        open_works_.load(std::memory_order_relaxed) > 0) {
      WakeThread();
    }
  }
  return work.done();
}

void DriverSeat::DriveUntil(const Work& work, Deadline give_up, bool background) {
  Backoff backoff;
  int busy = 0;
  while (!work.done()) {
    if (Turn() > 0) {
      backoff.Reset();
      // Without this check, messages of other calls could keep this thread here for ever.
      if (++busy % kTurnsPerGiveUpCheck == 0 && give_up.Passed(clock_.Now())) {
        return;
      }
      continue;
    }
    if (!background && backoff.Spin(crowded())) {
      continue;
    }
    const int64_t now = clock_.Now();
    if (give_up.Passed(now)) {
      return;
    }
    if (!background && backoff.Yield(now, crowded())) {
      continue;
    }
    polled_.CheckDeadlines();
    if (!work.done()) {
      SleepAsDriver(give_up);
    }
  }
}

void DriverSeat::SleepAsDriver(Deadline until) {
  if (!Arm()) {
    return;
  }
  const int timeout = TimeoutMs(std::min(until, polled_.next_deadline()));
  driver_sleeps_.store(true, std::memory_order_relaxed);
  // A. See Submit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (jobs_.Empty() && !stopping_.load(std::memory_order_relaxed)) {
    epoll_event events[8];
    epoll_wait(epoll_fd_, events, 8, timeout);
  }
  driver_sleeps_.store(false, std::memory_order_relaxed);
  DrainWakeFd();
}

void DriverSeat::SleepAsWaiter(const Work& work, Deadline give_up) {
  Waiter self{&work};
  {
    absl::MutexLock lock(&waiters_mutex_);
    waiters_.push_back(&self);
  }
  waiter_count_.fetch_add(1, std::memory_order_relaxed);
  // B and C. See Leave and WakeWaiters.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!work.done() && driver_.load(std::memory_order_relaxed) != kFree) {
    const int64_t left = std::min(give_up.Left(clock_.Now()), longest_nap_ns_);
    FutexWait(self.word, 0, left);
  }
  waiter_count_.fetch_sub(1, std::memory_order_relaxed);
  absl::MutexLock lock(&waiters_mutex_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
}

// ---- The seat's thread

void DriverSeat::ThreadMain() {
  int64_t nap = kMillisecond;
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t word = thread_word_.load(std::memory_order_acquire);
    if (!TryTake(kThread)) {
      // A caller drives. This thread tries again after the nap, or earlier if the caller leaves
      // while works are open.
      FutexWait(thread_word_, word, nap);
      nap = std::min(nap * 2, longest_nap_ns_);
      continue;
    }
    nap = kMillisecond;
    if (ThreadDrives()) {
      FutexWait(thread_word_, word, nap);  // time for the woken waiter to become the driver
    }
  }
}

bool DriverSeat::ThreadDrives() {
  // Only the driver drains the descriptor. So if a driver sleeps, it finds the bytes that were
  // written to wake it.
  DrainWakeFd();
  int idle = 0;
  while (idle < 2 && waiter_count_.load(std::memory_order_relaxed) == 0) {
    idle = Turn() > 0 ? 0 : idle + 1;
  }
  polled_.CheckDeadlines();
  const bool armed = idle >= 2 && Arm();
  const int timeout = armed ? TimeoutMs(polled_.next_deadline()) : 0;
  thread_sleeps_.store(armed, std::memory_order_relaxed);
  driver_.store(kFree, std::memory_order_release);
  // A and B. See Submit and Leave.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool handed_over = WakeOneWaiter();
  if (armed && !handed_over && jobs_.Empty() && !stopping_.load(std::memory_order_relaxed)) {
    epoll_event events[8];
    epoll_wait(epoll_fd_, events, 8, timeout);
  }
  thread_sleeps_.store(false, std::memory_order_relaxed);
  if (idle < 2 && !handed_over) {
    sched_yield();  // lets a waiter run whose work is done, so that it leaves waiters_
  }
  return handed_over;
}

// ---- Sleeping and waking

bool DriverSeat::Arm() {
  armed_ = true;
  return polled_.Arm();
}

void DriverSeat::WakeWaiters(const Work* work) {
  // C. Either the waiter sees that the work is done, or this thread sees that the waiter is
  // registered.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiter_count_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  absl::MutexLock lock(&waiters_mutex_);
  for (Waiter* waiter : waiters_) {
    if (waiter->work == work) {
      waiter->word.store(1, std::memory_order_release);
      FutexWake(waiter->word);
    }
  }
}

bool DriverSeat::WakeOneWaiter() {
  if (waiter_count_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  absl::MutexLock lock(&waiters_mutex_);
  for (Waiter* waiter : waiters_) {
    if (!waiter->work->done()) {  // a waiter whose work is done does not drive
      waiter->word.store(1, std::memory_order_release);
      FutexWake(waiter->word);
      return true;
    }
  }
  return false;
}

void DriverSeat::WakeThread() {
  if (!own_thread_) {
    return;
  }
  // ThreadMain reads the word before TryTake. If the word changes in between, FutexWait returns at
  // once.
  thread_word_.fetch_add(1, std::memory_order_release);
  FutexWake(thread_word_);
  if (thread_sleeps_.load(std::memory_order_relaxed)) {
    WakeDriver();
  }
}

void DriverSeat::WakeDriver() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
}

void DriverSeat::DrainWakeFd() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof(count));
}

int DriverSeat::TimeoutMs(Deadline until) const {
  const int64_t left = std::min(until.Left(clock_.Now()), longest_nap_ns_);
  return static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

}  // namespace entrain
