// Decides which thread polls (the driver), which threads sleep meanwhile, and when each of them is
// woken.
//
// The atomic variable driver_ tells which thread is the driver: none, a waiting caller, or the
// engine's own thread. A thread becomes the driver by a compare-and-swap on driver_. Functions
// marked [driver] may be called only by the driver. A caller that waits becomes the driver and
// polls in its own thread, so a blocking call needs no switch to another thread. The engine's
// thread drives when no caller does.
//
// Sleeping. The engine's thread first stops being the driver and then sleeps. Before that, it arms
// the polled objects, so that an event makes their descriptors readable. If a caller then polls,
// the objects are disarmed, and an event does not wake the engine's thread. So this thread sleeps
// for at most SeatOptions::longest_nap_ns. A caller that drives spins, then yields, and then sleeps
// as the driver. Submit wakes it.
//
// Thread safety: any thread, except for functions marked [driver].
//
// Invariants:
// 1 At most one thread is the driver. Jobs and polls run on the driver, one at a time.
// 2 A submitted job runs soon: on the driver if there is one, else on a thread that calls Kick,
//   else on the engine's thread.
// 3 While a work is open (started and not over), some thread polls, or sleeps with a time limit. No
//   wake-up depends on this time limit.
//
// The shared variables. Loads and stores are relaxed unless the table names another order. A, B and
// C are the fences described below the table.
//
//   variable         written by                            read by
//   driver_          TryTake (compare-and-swap, acquire);  TryTake; SleepAsWaiter and Await after B
//                    Leave, ThreadDrives (release)
//   jobs_            Submit; Turn (pops)                   SleepAsDriver, ThreadDrives after A;
//                                                          Leave after B; Kick, TakeIfQuiet, wanted
//   driver_sleeps_   SleepAsDriver                         Submit after A
//   thread_sleeps_   ThreadDrives, before it sets driver_  Submit after A; WakeThread
//   thread_word_     WakeThread (release)                  ThreadMain, before TryTake (acquire);
//                                                          the futex of ThreadMain
//   stopping_        Close (release)                       ThreadMain (acquire); SleepAsDriver,
//                                                          ThreadDrives after A; Leave after B
//   waiter_count_    SleepAsWaiter                         WakeOneWaiter after B; WakeWaiters
//                                                          after C; ThreadDrives
//   waiters_         SleepAsWaiter, with waiters_mutex_    WakeOneWaiter, WakeWaiters, with
//                                                          waiters_mutex_
//   Waiter::word     WakeOneWaiter, WakeWaiters (release,  the futex of SleepAsWaiter
//                    with waiters_mutex_)
//   open_works_      CountOpenWork                         Leave, Await after B; TakeIfQuiet
//
// The full fences. Each of two threads stores to a variable, passes a full fence, and loads the
// variable that the other thread stores. So at least one of the two sees the other's store.
//
//   A  Submit stores the job and loads driver_sleeps_ and thread_sleeps_.
//      SleepAsDriver and ThreadDrives store these and load jobs_.
//   B  Leave and ThreadDrives store kFree to driver_ and load waiter_count_.
//      SleepAsWaiter stores waiter_count_ and loads driver_.
//      Await, after a sleep, does the same. If no thread drives, the wake-up may have been meant
//      for a next driver, so Await wakes another thread.
//   C  Work::Finish stores that the work is done, and WakeWaiters loads waiter_count_.
//      SleepAsWaiter stores waiter_count_ and loads whether the work is done.
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
#include "lib/engine/work.h"

namespace entrain {

// A task for the driver.
// A job deletes itself in Run, or its submitter keeps it alive until Run has returned.
class Job : public MpscNode {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;  // [driver]
};

// The objects that the driver polls: transports and deadlines. All functions are [driver].
class Polled {
 public:
  virtual ~Polled() = default;
  // Polls everything once. Returns the number of events. Must not block.
  virtual int Poll() = 0;
  // Makes the watched descriptors readable at the next event. Returns false if an event may already
  // have happened.
  virtual bool Arm() = 0;
  // Handles all deadlines that have passed.
  virtual void CheckDeadlines() = 0;
  // Returns the earliest time at which CheckDeadlines has something to do.
  virtual Deadline next_deadline() const = 0;
};

struct SeatOptions {
  const Clock* clock = &Clock::Real();
  bool own_thread = true;                      // whether Start creates the engine's thread
  int64_t longest_nap_ns = 50 * kMillisecond;  // time limit of every sleep
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
  // Returns true if Start creates a thread, so that the engine runs without the program's help.
  bool own_thread() const { return own_thread_; }
  // Returns OK, or an error if the constructor could not create its descriptors.
  const absl::Status& status() const { return status_; }

  // Adds a descriptor. A thread that sleeps in epoll_wait wakes when the descriptor becomes
  // readable. Must be called before Start.
  absl::Status Watch(int fd, absl::string_view name);
  void Start();
  // Ends the engine's thread and makes the caller the driver for ever. No other thread drives after
  // that. Threads that return from a wait may still use the object. Must be called once, and not by
  // the engine's thread.
  void Close();

  void Submit(Job* job);
  // If no thread drives, runs the submitted jobs on the calling thread. The engine's thread then
  // continues the calls that the jobs have started.
  void Kick();
  // Runs `body` on the driver and blocks until it has returned. The driver starts `body` after
  // about one Turn at most.
  void RunInDriver(absl::AnyInvocable<void()> body);
  // Waits for the work, see Work::Wait.
  bool Await(const Work& work, Deadline give_up, bool background);
  // If no other thread drives, calls Turn once as the driver.
  void PollOnce();
  // If no thread drives, no work is open and no job waits, makes the caller the driver and returns
  // true. The caller must not poll, and must soon call Leave or Stay. For threads that send and
  // receive the messages of a small call themselves (inline_call.h).
  bool TakeIfQuiet();
  // Returns true if a job waits for the driver.
  bool wanted() const { return !jobs_.Empty(); }
  // Wakes the threads that wait for this work. The work must be over.
  void WakeWaiters(const Work* work);
  // Adds `change` to the number of open works: 1 when a work starts, -1 when it is over. Some
  // thread keeps polling while any work is open.
  void CountOpenWork(int change) { open_works_.fetch_add(change, std::memory_order_relaxed); }
  // `crowded`: the host has more ranks than cores, so a waiting thread yields its core at once.
  void SetCrowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }
  const Clock& clock() const { return clock_; }

  // [driver] Runs all jobs and polls once. In every kTurnsPerDeadlineCheck-th call, also checks
  // deadlines. Returns the number of jobs and events.
  int Turn();
  // [driver] Makes Leave call Turn once more. Must be called if messages must reach the peers
  // before this driver leaves.
  void NeedFlush() { flush_ = true; }
  // [driver] Stops being the driver. Wakes the thread that should drive next.
  void Leave();
  // [driver] Drives until the work is over, then calls Leave.
  void Stay(const Work& work);

  // For tests: which threads drive and sleep. Other threads may change this at any time.
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
  // True from Arm until the next Turn. While it is true, peers send a wake-up with every message.
  bool armed_ = false;

  std::thread thread_;
};

}  // namespace entrain
