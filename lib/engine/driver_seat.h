// The seat of the driver: which thread polls, which threads sleep meanwhile, and which of them is woken when.
//
// One word says who drives: nobody, a caller, or the seat's own thread. The thread that takes the word by
// compare-and-swap is the driver; everything marked [driver] runs there and nowhere else. A caller that waits takes the
// word and polls in its own thread, so a blocking call costs no thread hop; the seat's thread steps in when no caller
// drives.
//
// Sleeping. The seat's thread never sleeps with the word. It arms the polled objects, gives the word back and sleeps on
// the watched descriptors for at most SeatOptions::longest_nap_ns, so that it looks again soon at what a caller's polling has
// disarmed. A caller spins, yields, and then sleeps with the word; Submit wakes it.
//
// Thread safety: any thread, except for what is marked [driver].
//
// Invariants:
//   1 At most one thread drives. Jobs and polls run on the driver, one at a time.
//   2 A submitted job runs soon: on the driver if there is one, else on a submitter that calls Kick, else on the seat's
//     thread.
//   3 While a work is open, some thread polls, or naps. No wake-up depends on the end of a nap.
//
// The words that threads share. Loads and stores are relaxed except where the table names another order. A letter is a
// fence of the list below.
//
//   word              written by                             read by
//   driver_           TryTake (compare-and-swap, acquire);   TryTake; SleepAsWaiter after B; Await after B
//                     Leave, ThreadDrives (release)
//   jobs_             Submit; the driver pops                SleepAsDriver, ThreadDrives after A; Leave after B; Kick,
//                                                            TakeIfQuiet, wanted
//   driver_sleeps_    SleepAsDriver                          Submit after A
//   thread_sleeps_    ThreadDrives, before it frees driver_  Submit after A; WakeThread
//   thread_word_      WakeThread (release)                   ThreadMain, before TryTake (acquire); the futex
//   stopping_         Close (release)                        ThreadMain (acquire); SleepAsDriver, ThreadDrives after A
//   waiter_count_     SleepAsWaiter                          WakeOneWaiter after B; WakeWaiters after C; ThreadDrives
//   waiters_          SleepAsWaiter, with waiters_mutex_     WakeOneWaiter, WakeWaiters, with waiters_mutex_
//   Waiter::word      WakeOneWaiter, WakeWaiters (release),  the futex of SleepAsWaiter
//                     with waiters_mutex_
//   open_works_       CountOpenWork                          Leave, Await after B; TakeIfQuiet
//
// Full fences. Each stands between a store of its own thread and a load of what the other side stores, so that at least
// one of the two threads sees the other.
//
//      one side: store | load                                the other side: store | load
//   A  Submit: the job | who sleeps                          SleepAsDriver, ThreadDrives: I sleep | jobs
//   B  Leave, ThreadDrives: the seat is free | waiters       SleepAsWaiter: I am registered | who drives
//      Await after a sleep: I am not registered | who drives: passes on a wake that was meant for a next driver
//   C  WakeWaiters (the work is done): | waiters             SleepAsWaiter: I am registered | is the work done
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/base/mpsc_queue.h"
#include "lib/engine/job.h"
#include "lib/engine/work.h"

namespace entrain {

// What the driver polls. All [driver].
class Polled {
 public:
  virtual ~Polled() = default;
  // Looks at everything once. Returns the number of events. Must not block.
  virtual int Poll() = 0;
  // Lets the watched descriptors become readable at the next event. False: something may have come already.
  virtual bool Arm() = 0;
  // Ends what is due.
  virtual void CheckDeadlines() = 0;
  // The first instant at which CheckDeadlines has something to do.
  virtual Deadline next_deadline() const = 0;
};

struct SeatOptions {
  const Clock* clock = &Clock::Real();
  bool own_thread = true;                      // whether Start starts a thread
  int64_t longest_nap_ns = 50 * kMillisecond;  // of a thread that could drive
};

class DriverSeat {
 public:
  static constexpr uint32_t kTurnsPerDeadlineCheck = 64;
  static constexpr uint32_t kQuietTakesPerTurn = 256;

  // `polled` and the clock outlive it.
  DriverSeat(Polled& polled, const SeatOptions& options);
  ~DriverSeat();
  DriverSeat(const DriverSeat&) = delete;
  DriverSeat& operator=(const DriverSeat&) = delete;
  // Whether the constructor has got its descriptors.
  const absl::Status& status() const { return status_; }

  // Before Start: a descriptor that wakes sleepers when it becomes readable.
  absl::Status Watch(int fd, absl::string_view name);
  void Start();
  // Ends the thread and takes the seat for good: the caller is the driver from here on, and no other thread drives any
  // more. Threads on their way out of a wait may still use the object. Once; not from the seat's thread.
  void Close();

  void Submit(Job* job);
  // If no thread drives, runs what was submitted here and leaves the rest to the seat's thread.
  void Kick();
  // Runs `body` on the driver and waits for it: at most about one turn.
  void RunInDriver(absl::AnyInvocable<void()> body);
  // See Work::Wait.
  bool Await(const Work& work, Deadline give_up, bool background);
  // One turn, unless another thread drives.
  void PollOnce();
  // For a caller that moves a small call's messages by itself (inline_call.h): true when no thread drives and nothing is
  // under way. The caller is then the driver, polls nothing, and soon calls Leave or Stay.
  bool TakeIfQuiet();
  // A job waits for the driver.
  bool wanted() const { return !jobs_.Empty(); }
  // Wakes the threads that wait for this work, which is done.
  void WakeWaiters(const Work* work);
  // A work was started or is over: while any is open, some thread keeps polling.
  void CountOpenWork(int change) { open_works_.fetch_add(change, std::memory_order_relaxed); }
  // More local ranks than cores: waiters give the core away at once.
  void SetCrowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }
  const Clock& clock() const { return clock_; }

  // [driver] One turn: jobs, polls, from time to time deadlines. Returns the number of events.
  int Turn();
  // [driver] Something must reach the peers before this driver leaves: Leave takes one more turn.
  void NeedFlush() { flush_ = true; }
  // [driver] Gives the seat back, and wakes the thread that should drive next.
  void Leave();
  // [driver] Goes on as the driver until the work is done, then leaves.
  void Stay(const Work& work);

  // Who sits and who sleeps, for tests: out of date at once.
  struct Standing {
    bool driven = false, driver_sleeps = false, thread_sleeps = false;
    int waiters = 0;
  };
  Standing Look() const;

 private:
  enum Driver : int { kFree, kCaller, kThread };
  struct Waiter {
    const Work* work;
    std::atomic<uint32_t> word{0};
  };

  bool TryTake(Driver who);
  void DriveUntil(const Work& work, Deadline give_up, bool background);  // [driver]
  void SleepAsDriver(Deadline until);                                    // [driver]
  void SleepAsWaiter(const Work& work, Deadline give_up);
  void ThreadMain();
  // One stint of the seat's thread at the wheel, and its sleep. True: it has woken a waiter that will drive.
  bool ThreadDrives();
  bool Arm();  // [driver]
  void WakeDriver();
  void WakeThread();
  bool WakeOneWaiter();
  void DrainWakeFd();
  int TimeoutMs(Deadline until) const;

  Polled& polled_;
  const Clock& clock_;
  const bool own_thread_;
  const int64_t longest_nap_ns_;
  absl::Status status_;
  int epoll_fd_ = -1, wake_fd_ = -1;

  MpscQueue jobs_;
  std::atomic<int> driver_{kFree};
  std::atomic<bool> driver_sleeps_{false};
  std::atomic<bool> thread_sleeps_{false};
  std::atomic<uint32_t> thread_word_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> crowded_{false};
  std::atomic<int> open_works_{0};

  absl::Mutex waiters_mutex_;
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(waiters_mutex_);
  std::atomic<int> waiter_count_{0};

  // [driver] only:
  uint32_t turns_ = 0, quiet_takes_ = 0;
  bool flush_ = false;
  bool armed_ = false;  // since the last turn: peers ring at every message

  std::thread thread_;
};

}  // namespace entrain
