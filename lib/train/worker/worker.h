// A thread that runs blocking jobs one after the other. So code that waits for the network can be a
// sequence of blocking calls, and still run during the caller's computation.
//
// After the first job that fails, no job runs. Waiting jobs and jobs posted later are dropped. They
// count as done, with the error of the failed job. Below this is called the end of the work.
//
// Every wait ends. A job consists of steps (Doing), and each step has a time limit. The calls in a
// job have time limits too. These calls end by themselves, and their errors name the guilty rank. A
// thread that waits for the worker gives up kReportNs after the limit of the step, and this ends
// the work. A thread gives up only if a function of the caller takes too long, or if the library
// itself is broken.
//
// The worker cannot interrupt a function of the caller (CallersFunction). Such a function may need
// a lock that another thread of the caller holds while this thread destroys the worker's owner. So
// the destruction must not wait for the function for ever: StopSoon gives up, and the worker's
// thread frees the owner later (Leave).
//
// Thread safety: any thread; jobs must not call Wait, Hold, Drain or Stop of their own worker.
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
#include "lib/kernels/kernel_threads.h"

namespace entrain {

class Worker {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;

  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  static constexpr int64_t kReportNs = kSecond;
  // The destruction of an object waits at most this long for a round under way, which other ranks
  // need for the last of as many steps as this rank has made. With functions of the caller, which
  // may wait for the destroying thread, it waits kReportNs.
  static constexpr int64_t kLastRoundNs = 10 * kSecond;

  // The first job starts the thread.
  //
  // `give_up` must make the running job and the calls of other ranks fail. A thread that has waited
  // too long calls `give_up`, without a lock, once or more.
  //
  // `inside` may be called on any thread. When a job enters a function of the caller, the argument
  // of `inside` is the function's name. When the function has returned or is abandoned, the
  // argument is "".
  //
  // If `watch` is not null, the worker's thread calls it every 50 ms while no job runs. `watch` may
  // use Doing. If `watch` returns an error, the work ends.
  //
  // Jobs, `watch` and RunHere share their passes over arrays with `threads`, which must outlive the
  // worker; null: with no threads.
  Worker(int64_t limit_ns, absl::AnyInvocable<void(const absl::Status&)> give_up,
         absl::AnyInvocable<void(absl::string_view)> inside = nullptr,
         absl::AnyInvocable<absl::Status()> watch = nullptr, KernelThreads* threads = nullptr)
      : limit_ns_(limit_ns),
        give_up_(std::move(give_up)),
        inside_of_(std::move(inside)),
        watch_(std::move(watch)),
        threads_(threads) {}
  ~Worker() { Stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Appends a job and returns its number, counted from 1. After the end of the work: drops the job
  // and returns the last number.
  uint64_t Post(Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job of this number and all jobs before it are done. Returns the first error of
  // any of them. A job may wait for other workers.
  absl::Status Wait(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks as Wait does, but at most until the deadline. Returns false if the job is not done by
  // then.
  absl::StatusOr<bool> WaitUntil(uint64_t number, Deadline until) ABSL_LOCKS_EXCLUDED(mutex_);
  // As Wait. Returns kFailedPrecondition if it would block inside a callback that must not block
  // (CallbackScope).
  absl::Status Hold(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `then` once when the job of this number is done, with the first error so far. Calls
  // `then` before returning, or later on the worker's thread, where `then` must not block.
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;
  void WhenDone(uint64_t number, Continuation then) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of the last posted job, or 0.
  uint64_t last() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for all jobs posted so far.
  absl::Status Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Holds back jobs with a higher number until a later call allows them. Initially there is no
  // limit, kNoLimit.
  void Limit(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `body`, which works on arrays, in the calling thread.
  absl::Status RunHere(absl::FunctionRef<absl::Status()> body) {
    const KernelThreads::Scope scope(threads_);
    return body();
  }
  // Called in a job. Names the next step of the job, and sets the step's time limit; 0: the
  // worker's limit. Has no effect on a thread that is not a worker's.
  static void Doing(absl::string_view what, int64_t limit_ns = 0);
  // Called in a job. Calls a function of the caller. While the function runs, most calls of the
  // library return an error in it (CallbackScope). Returns kAborted if the worker was stopped
  // before or during the call. Then the job must no longer use the caller's memory.
  static absl::Status CallersFunction(absl::string_view name, absl::FunctionRef<void()> call);
  // Returns true if the job of this number is done. Does not wait.
  bool IsDone(uint64_t number) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns true if no job runs or waits.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first error so far, without waiting.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the jobs that have not begun (with kAborted), waits for the running job, and ends the
  // thread. If the caller of Stop cannot wait, it must first make the running job fail. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops like Stop, but waits at most kReportNs for a function of the caller. If the function has
  // already exceeded its limit by more than kReportNs, does not wait for it. Returns false if the
  // function has not returned. Then the job counts as done with kAborted, and Leave must be called.
  bool StopSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the thread call `last` when the job has returned. `last` may free the worker.
  void Leave(absl::AnyInvocable<void() &&> last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Must be called before StopSoon. If the job is in a function of the caller, ends all waits for
  // the job with the error `why`. No further function of the caller is called.
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
  // Returns OK if the awaited jobs may still finish. Otherwise returns an error and ends the work
  // with it.
  absl::Status CheckUnderWay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Job> Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Enter(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Return(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t limit_ns_;
  absl::AnyInvocable<void(const absl::Status&)> give_up_;
  absl::AnyInvocable<void(absl::string_view)> inside_of_;
  absl::AnyInvocable<absl::Status()> watch_;
  KernelThreads* const threads_;
  mutable absl::Mutex mutex_;
  std::string doing_ ABSL_GUARDED_BY(mutex_);  // current step; next line: its start, its limit
  int64_t begun_ns_ ABSL_GUARDED_BY(mutex_) = 0, may_take_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // the last finished job; jobs finish in order
  uint64_t may_begin_ ABSL_GUARDED_BY(mutex_) = kNoLimit;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;  // the job is in a function of the caller
  bool left_ ABSL_GUARDED_BY(mutex_) = false;    // the thread waits for last_ before it ends
  absl::AnyInvocable<void() &&> last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
