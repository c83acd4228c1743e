// A thread that runs blocking jobs one after the other. Code that waits for the network can thus be
// written as a sequence of blocking calls and still run beside the caller's computation.
//
// The first job that fails ends the work: jobs that wait behind it, and jobs posted later, are
// dropped unrun and count as done with that first error.
//
// Every wait ends. A job must finish within the limit, or name its next step (Doing), which must
// finish within the limit again. The calls of a job have the same limit, end by themselves, and
// know the guilty rank. A thread that waits for the worker gives up kReportNs after the limit. This
// happens only if the library itself is broken. Giving up ends the work too.
//
// A function of the caller (CallersFunction) has no time limit. It may need a lock that another
// thread of the caller holds while it destroys the worker's owner. If such a function does not
// return, the worker's thread frees the owner (StopSoon, Leave).
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

  // The first job starts the thread. `give_up` must make the running job and the calls of other
  // ranks fail. A thread that has waited too long calls `give_up`, without a lock, once or more.
  // `inside` may be called on any thread. When a job enters a function of the caller, the argument
  // of `inside` is the function's name. When the function has returned or is abandoned, the
  // argument is "". `watch`, if not null, is called by the worker's thread every 50 ms while no job
  // runs. `watch` may use Doing. If `watch` returns an error, the work ends.
  WorkerThread(int64_t limit_ns, absl::AnyInvocable<void(const absl::Status&)> give_up,
               absl::AnyInvocable<void(absl::string_view)> inside = nullptr,
               absl::AnyInvocable<absl::Status()> watch = nullptr)
      : limit_ns_(limit_ns),
        give_up_(std::move(give_up)),
        inside_of_(std::move(inside)),
        watch_(std::move(watch)) {}
  ~WorkerThread() { Stop(); }
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Appends a job and returns its number, counted from 1. After the end of the work: drops the job
  // and returns the last number.
  uint64_t Post(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job of this number and all jobs before it are done. Returns the first error of
  // any of them. A job may wait for other workers.
  absl::Status Wait(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks as Wait does, but at most until the deadline. Returns false if the job is not done by
  // then.
  absl::StatusOr<bool> WaitUntil(uint64_t number, Deadline until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `then` once, with the first error so far, when the job of this number is done: before
  // returning, or from the worker's thread, where `then` must not block.
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;
  void WhenDone(uint64_t number, Continuation then) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of the last posted job, or 0.
  uint64_t last() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for all jobs posted so far.
  absl::Status Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Holds back jobs with a higher number until a later call allows them. Initially there is no
  // limit.
  void Limit(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Called in a job. Names the next step of the job, and sets the step's time limit; 0: the
  // worker's limit. Has no effect outside a job.
  static void Doing(absl::string_view what, int64_t limit_ns = 0);
  // Called in a job. Calls a function of the caller. While the function runs, most calls of the
  // library return an error in it (CallbackScope). Returns kAborted if the worker was stopped
  // before or during the call. The job must not touch the caller's memory afterwards.
  static absl::Status CallersFunction(absl::string_view name, absl::FunctionRef<void()> call);
  // Returns true if the job of this number is done. Does not wait.
  bool IsDone(uint64_t number) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns true if no job runs or waits.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first error so far, without waiting.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the jobs that have not begun (with kAborted), waits for the running job, and ends the
  // thread. A caller that cannot wait must make that job fail first. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops like Stop, but does not wait for ever. Returns false if the job is in a function of the
  // caller that does not return within kReportNs, or that has already exceeded its limit and
  // kReportNs. The job then counts as done with kAborted, and Leave must be called.
  bool StopSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the thread call `last` when the job has returned. `last` may free the worker.
  void Leave(absl::AnyInvocable<void() &&> last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Must be called before StopSoon. Ends with `why` all waits for a job that is in a function of
  // the caller. No further function of the caller is called.
  void Abandon(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Watcher {
    uint64_t number;
    Continuation then;
  };
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsCalled() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AwaitCall() ABSL_LOCKS_EXCLUDED(mutex_);
  bool RunNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls the continuations whose jobs are done.
  void TellWatchers() ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(absl::string_view what, int64_t limit_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLate(int64_t spent_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK if the awaited jobs may still finish. Otherwise ends the work with the returned
  // error.
  absl::Status CheckUnderWay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Job> Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Enter(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Return(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t limit_ns_;
  absl::AnyInvocable<void(const absl::Status&)> give_up_;
  absl::AnyInvocable<void(absl::string_view)> inside_of_;
  absl::AnyInvocable<absl::Status()> watch_;
  mutable absl::Mutex mutex_;
  std::string doing_ ABSL_GUARDED_BY(mutex_);  // current step; then its start and its limit
  int64_t begun_ns_ ABSL_GUARDED_BY(mutex_) = 0, may_take_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs finish in order, so one number suffices
  uint64_t may_begin_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<uint64_t>::max();
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;  // the job is in a function of the caller
  bool left_ ABSL_GUARDED_BY(mutex_) = false;    // the thread waits for last_ before it ends
  absl::AnyInvocable<void() &&> last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
