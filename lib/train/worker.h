// Where the jobs of an object of training run, beside the caller's computation: on a thread of the host (HostWorker), or on a
// thread and a stream of a device (DeviceWorker). The object's code is the same for both:
//
//   object                             on the host                      on a device
//   Post                               the thread runs it when its      the same, when the device has come to where the
//                                      turn comes                       caller's stream was
//   Hold: what the caller does next    blocks                           the caller's stream waits; the host goes on
//   comes after a job
//   Start: a short job on arrays       runs in the caller's thread      is posted
//
// The first job that fails ends the work: later jobs are dropped unrun and count as done with that first error.
//
// Thread safety: one thread posts, holds and stops; Wait, WhenDone, Holds, status and Abandon from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/device/device.h"
#include "lib/train/placed_array.h"

namespace entrain {

class Worker {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;

  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  virtual ~Worker() = default;

  // Appends a job; gives its number, from 1.
  absl::StatusOr<uint64_t> Post(Job job) { return PostThen(std::move(job), {}); }
  // Calls `then` after the job unless it has failed, and before anything that waits for the job goes on.
  virtual absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) = 0;
  // Jobs with a higher number do not begin until a later call allows them. kNoLimit: none is held back.
  virtual void Limit(uint64_t number) = 0;
  // Blocks until the job and all before it are done. Returns the first error of any.
  virtual absl::Status Wait(uint64_t number) = 0;
  absl::Status Drain() { return Wait(last()); }
  // Calls `then` once with the first error so far when the job is done: from the worker's thread, which must not be blocked, or
  // before this returns.
  virtual void WhenDone(uint64_t number, Continuation then) = 0;
  // The number of the last job that was posted; 0: none was.
  virtual uint64_t last() const = 0;
  // The first error so far, without waiting.
  virtual absl::Status status() const = 0;

  // What the caller does next comes after this job, and so after all before it. Returns the first error. FAILED_PRECONDITION where
  // the host would have to block inside a function of the caller's that must not (CallbackScope).
  virtual absl::Status Hold(uint64_t number) = 0;
  // Whether that is so already.
  virtual bool Holds(uint64_t number) const = 0;
  // A short job that works on the arrays of the job of number `after`, and follows it. Gives the number to Hold; 0: it is over.
  virtual absl::StatusOr<uint64_t> Start(uint64_t after, Job job) = 0;
  // Runs `body` in this thread, on arrays: done when this returns, or enqueued on the caller's stream.
  virtual absl::Status RunHere(absl::FunctionRef<absl::Status()> body) = 0;
  // Waits for all jobs, and for what the caller has enqueued on arrays before: nobody but the caller's thread uses them then.
  // Returns an error where that was done with data that never came. `timeout_ns` 0: the worker's limit.
  virtual absl::Status ComeToRest(int64_t timeout_ns) = 0;
  // Not OK: what the caller has computed is of no use to others, since data that it was made of never came.
  virtual absl::Status Sound() const = 0;
  virtual ArraysAt arrays() const = 0;
  // On which jobs enqueue; null: on the host.
  virtual StreamHandle stream() const = 0;

  // Ends the work and the thread. A job may still use the worker meanwhile, so its owner calls this before it lets go of it.
  virtual void Stop() = 0;
  // Ends the work: `why` to those who ask, and to jobs that have not begun. False: a job is in a function of the caller's that
  // does not return (WorkerThread::StopSoon), and a call of Leave must follow.
  virtual bool StopSoon(const absl::Status& why) = 0;
  // The thread calls `last` when the job has returned; `last` may free the worker.
  virtual void Leave(absl::AnyInvocable<void() &&> last) = 0;
  // Before StopSoon: ends all waits for a job that is in a function of the caller's with `why`.
  virtual void Abandon(const absl::Status& why) = 0;
};

}  // namespace entrain
