// The seat of the driver decides which thread polls, which threads sleep meanwhile, and when each
// of them is woken.
//
// The atomic variable driver_ tells which thread drives: none, a caller, or the seat's own thread.
// A thread takes the seat by compare-and-swap on driver_, and is then the driver. Everything marked
// [driver] runs only on the driver. A waiting caller takes the seat and polls in its own thread, so
// a blocking call needs no change of threads. The seat's thread drives when no caller does.
//
// Sleeping. The seat's thread never holds the seat while it sleeps. It arms the polled objects,
// gives the seat back and sleeps on the watched descriptors. A caller that polls meanwhile disarms
// the objects, so the seat's thread sleeps for at most SeatOptions::longest_nap_ns. A caller that
// drives spins, then yields, and then sleeps while it holds the seat. Submit wakes this caller.
//
// Thread safety: any thread, except for functions marked [driver].
//
// Invariants:
//   1 At most one thread drives. Jobs and polls run on the driver, one at a time.
//   2 A submitted job runs soon: on the driver if there is one, else on a submitter that calls
//     Kick, else on the seat's thread.
//   3 While a work is open, some thread polls or naps. (A nap is a sleep of limited length.) No
//     wake-up depends on the end of a nap.
//
// The variables that threads share. Loads and stores are relaxed unless the table names another
// order. The letters A, B and C stand for the fences in the list below.
//
//   variable          written by                             read by
//   driver_           TryTake (compare-and-swap, acquire);   TryTake; SleepAsWaiter after B; Await after B
//                     Leave, ThreadDrives (release)
//   jobs_             Submit; the driver pops                SleepAsDriver, ThreadDrives after A; Leave after B; Kick,
//                                                            TakeIfQuiet, wanted
//   driver_sleeps_    SleepAsDriver                          Submit after A
//   thread_sleeps_    ThreadDrives, before it frees driver_  Submit after A; WakeThread
//   thread_word_      WakeThread (release)                   ThreadMain, before TryTake (acquire); the futex
//   stopping_         Close (release)                        ThreadMain (acquire); SleepAsDriver, ThreadDrives after A
//                                                              Leave after B
//   waiter_count_     SleepAsWaiter                          WakeOneWaiter after B; WakeWaiters after C; ThreadDrives
//   waiters_          SleepAsWaiter, with waiters_mutex_     WakeOneWaiter, WakeWaiters, with waiters_mutex_
//   Waiter::word      WakeOneWaiter, WakeWaiters (release),  the futex of SleepAsWaiter
//                     with waiters_mutex_
//   open_works_       CountOpenWork                          Leave, Await after B; TakeIfQuiet
//
// Full fences. Each fence lies between a thread's own store and its load of the variable that the
// other thread stores. So at least one of the two threads sees the other's store.
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

// The objects that the driver polls. All functions are [driver].
class Polled {
 public:
  virtual ~Polled() = default;
  // Polls everything once. Returns the number of events. Must not block.
  virtual int Poll() = 0;
  // Makes the watched descriptors become readable at the next event. Returns false if an event may
  // have come already.
  virtual bool Arm() = 0;
  // Handles the deadlines that have passed.
  virtual void CheckDeadlines() = 0;
  // Returns the first instant at which CheckDeadlines has something to do.
  virtual Deadline next_deadline() const = 0;
};

struct SeatOptions {
  const Clock* clock = &Clock::Real();
  bool own_thread = true;                      // whether Start starts a thread
  int64_t longest_nap_ns = 50 * kMillisecond;  // the longest sleep of a thread that could drive
};

class DriverSeat {
 public:
  static constexpr uint32_t kTurnsPerDeadlineCheck = 64;
  static constexpr uint32_t kQuietTakesPerTurn = 256;

  // `polled` and the clock must outlive this object.
  DriverSeat(Polled& polled, const SeatOptions& options);
  ~DriverSeat();
  DriverSeat(const DriverSeat&) = delete;
  DriverSeat& operator=(const DriverSeat&) = delete;
  // Returns OK, or the error if the constructor could not open its descriptors.
  const absl::Status& status() const { return status_; }

  // Adds a descriptor that wakes sleepers when it becomes readable. Must be called before Start.
  absl::Status Watch(int fd, absl::string_view name);
  void Start();
  // Ends the seat's thread and takes the seat for good: from now on the caller is the driver, and
  // no other thread drives. Threads that return from a wait may still use the object. Must be
  // called once, and not from the seat's thread.
  void Close();

  void Submit(Job* job);
  // If no thread drives, runs the submitted jobs on the calling thread. The seat's thread then goes
  // on with the calls that these jobs have started.
  void Kick();
  // Runs `body` on the driver and blocks until `body` has returned. Waits for the driver for at
  // most about one turn.
  void RunInDriver(absl::AnyInvocable<void()> body);
  // See Work::Wait.
  bool Await(const Work& work, Deadline give_up, bool background);
  // Takes one turn, unless another thread drives.
  void PollOnce();
  // Makes the caller the driver and returns true if no thread drives and nothing is under way. The
  // new driver must not poll, and must soon call Leave or Stay. For threads that move the messages
  // of a small call themselves (inline_call.h).
  bool TakeIfQuiet();
  // Returns true if a job waits for the driver.
  bool wanted() const { return !jobs_.Empty(); }
  // Wakes the threads that wait for this work. The work must be done.
  void WakeWaiters(const Work* work);
  // Adds `change` to the number of open works: 1 when a work starts, -1 when it is over. While any
  // work is open, some thread keeps polling.
  void CountOpenWork(int change) { open_works_.fetch_add(change, std::memory_order_relaxed); }
  // `crowded`: the host has more ranks than cores, so waiters yield their core at once.
  void SetCrowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }
  const Clock& clock() const { return clock_; }

  // [driver] Takes one turn: jobs, polls, and from time to time deadlines. Returns the number of
  // events.
  int Turn();
  // [driver] Makes Leave take one more turn. Must be called when messages must reach the peers
  // before this driver leaves.
  void NeedFlush() { flush_ = true; }
  // [driver] Gives the seat back and wakes the thread that should drive next.
  void Leave();
  // [driver] Drives until the work is done, then leaves.
  void Stay(const Work& work);

  // For tests: which threads drive and sleep. Another thread may change these facts at any time.
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
  // Drives until two turns find nothing or a caller waits, then sleeps. Returns true if it has
  // woken a waiter that will drive next.
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
  // True after Arm until the next turn. While armed, peers send a wake-up with every message.
  bool armed_ = false;

  std::thread thread_;
};

}  // namespace entrain
