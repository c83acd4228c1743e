// A thread that runs blocking jobs one after the other, so that code which waits for the network
// can be written as straight lines and still run beside the caller's computation.
//
// The first job that fails ends the work: what waits behind it, and what is posted later, is
// dropped unrun and counts as done with that first error.
//
// No wait is without end. A job is to be over within the limit, or says what it goes on to (Doing), and that is to be over within
// it. The calls of a job have the same limit, end by themselves, and know the guilty rank; so whoever waits for the worker gives
// up kReportNs later, and only if the library itself is broken. That ends the work too.
//
// A function of the caller's (CallersFunction) has no bound, and may need a lock that its caller holds while it destroys the
// worker's owner. If such a function does not return, the worker's thread frees the owner (StopSoon, Leave).
//
// Thread safety: any thread; jobs must not call Wait, Drain or Stop of their own worker.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"

namespace entrain {

class WorkerThread {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;

  static constexpr int64_t kReportNs = kSecond;

  // The thread starts with the first job. `give_up` is called, without a lock, by a thread that has waited too long, once or more:
  // it makes the job that runs, and other ranks' calls, fail.
  // `inside`: by any thread, with the name of a function of the caller's that a job enters, and "" when the function has returned
  // or is left.
  WorkerThread(int64_t limit_ns, absl::AnyInvocable<void(const absl::Status&)> give_up,
               absl::AnyInvocable<void(absl::string_view)> inside = nullptr)
      : limit_ns_(limit_ns), give_up_(std::move(give_up)), inside_of_(std::move(inside)) {}
  ~WorkerThread() { Stop(); }
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Appends a job; gives its number, from 1. After the end: drops it, and gives the last number.
  uint64_t Post(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job of this number is done, and so are all before it. The first error of any. Jobs may wait for other workers.
  absl::Status Wait(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same until then at most; false: it is not done.
  absl::StatusOr<bool> WaitUntil(uint64_t number, Deadline until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `then` once with the first error so far when the job of this number is done: from the worker's thread, which must not
  // be blocked, or before this returns when it is done already.
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;
  void WhenDone(uint64_t number, Continuation then) ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of the last job that was posted; 0: none was.
  uint64_t last() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Wait for everything posted so far.
  absl::Status Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Jobs with a higher number do not begin until a later call allows them. By default there is no limit.
  void Limit(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // In a job: what it goes on to, and for how long at most; 0: the worker's limit. Elsewhere without effect.
  static void Doing(absl::string_view what, int64_t limit_ns = 0);
  // In a job: it goes on to a function of the caller's, in which most calls of the library are refused (CallbackScope).
  // kAborted: the worker was stopped before, or meanwhile. The job must not touch the caller's memory any more.
  static absl::Status CallersFunction(absl::string_view name, absl::FunctionRef<void()> call);
  // Without waiting: whether the job of this number is done.
  bool IsDone(uint64_t number) const ABSL_LOCKS_EXCLUDED(mutex_);
  // True when nothing runs or waits.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The first error so far, without waiting.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops what has not begun (as kAborted), waits for the job that runs, ends the thread. Whoever
  // cannot wait makes that job fail first. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops. False: the job is in a function of the caller's that does not return within kReportNs, or that is later
  // than its limit and kReportNs already. The job then counts as done, with kAborted, and a call of Leave must follow.
  bool StopSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread calls `last` when the job has returned; `last` may free the worker.
  void Leave(absl::AnyInvocable<void() &&> last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before StopSoon: ends all waits for a job that is in a function of the caller's with `why`. No such function is called
  // any more.
  void Abandon(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Watcher {
    uint64_t number;
    Continuation then;
  };
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool RunNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // Those whose jobs are done.
  void TellWatchers() ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(absl::string_view what, int64_t limit_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLate(int64_t spent_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether what somebody waits for may still come. Not OK: ends the work.
  absl::Status CheckUnderWay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Job> Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Enter(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Return(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t limit_ns_;
  absl::AnyInvocable<void(const absl::Status&)> give_up_;
  absl::AnyInvocable<void(absl::string_view)> inside_of_;
  mutable absl::Mutex mutex_;
  std::string doing_
      ABSL_GUARDED_BY(mutex_);  // what has begun last, when, and how long it may take
  int64_t begun_ns_ ABSL_GUARDED_BY(mutex_) = 0, may_take_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs finish in order, so one number tells for all
  uint64_t may_begin_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<uint64_t>::max();
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;  // the job is in a function of the caller's
  bool left_ ABSL_GUARDED_BY(mutex_) = false;    // the thread waits for last_ before it ends
  absl::AnyInvocable<void() &&> last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
