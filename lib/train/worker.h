// Runs the jobs of a training object beside the caller's computation: on a thread of the host
// (HostWorker), or on a thread and a stream of a device (DeviceWorker). The object's code is the
// same for both:
//
//   object                             on the host                      on a device
//   Post                               the thread runs it when its      the same, when the device has come to where the
//                                      turn comes                       caller's stream was
//   Hold: what the caller does next    blocks                           the caller's stream waits; the host goes on
//   comes after a job
//   Start: a short job on arrays       runs in the caller's thread      is posted
//
// The first job that fails ends the work: later jobs are dropped unrun and count as done with that
// first error.
//
// Thread safety: only one thread posts, holds and stops. Wait, WhenDone, Holds, status and Abandon
// may be called from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/device/arrays.h"
#include "lib/device/device.h"

namespace entrain {

class Worker {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;

  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  virtual ~Worker() = default;

  // Appends a job and returns its number, counted from 1.
  absl::StatusOr<uint64_t> Post(Job job) { return PostThen(std::move(job), {}); }
  // Like Post. If the job succeeds, calls `then` after it. Whoever waits for the job waits until
  // `then` has returned.
  virtual absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) = 0;
  // Holds back jobs with a higher number until a later call allows them. kNoLimit holds back none.
  virtual void Limit(uint64_t number) = 0;
  // Blocks until the job and all jobs before it are done. Returns the first error of any of them.
  virtual absl::Status Wait(uint64_t number) = 0;
  absl::Status Drain() { return Wait(last()); }
  // Calls `then` once, with the first error so far, when the job is done: before returning, or from
  // the worker's thread, where `then` must not block.
  virtual void WhenDone(uint64_t number, Continuation then) = 0;
  // Returns the number of the last posted job, or 0.
  virtual uint64_t last() const = 0;
  // Returns the first error so far, without waiting.
  virtual absl::Status status() const = 0;

  // Orders the caller's next work behind this job and all jobs before it. Returns the first error.
  // Returns FAILED_PRECONDITION if the host would have to block inside a function of the caller in
  // which waiting is not allowed (CallbackScope).
  virtual absl::Status Hold(uint64_t number) = 0;
  // Returns true if the caller's work is already ordered behind the job.
  virtual bool Holds(uint64_t number) const = 0;
  // Runs or posts a short job that works on the arrays of job number `after` and must follow it.
  // Returns the number for Hold, or 0 if the short job is over.
  virtual absl::StatusOr<uint64_t> Start(uint64_t after, Job job) = 0;
  // Runs `body`, which works on arrays, in this thread. When this returns, the work is done, or
  // enqueued on the caller's stream.
  virtual absl::Status RunHere(absl::FunctionRef<absl::Status()> body) = 0;
  // Waits for all jobs, and for the work on arrays that the caller has enqueued before. Afterwards
  // only the caller's thread uses the arrays. Returns an error if this work used data that never
  // arrived. If `timeout_ns` is 0, the worker's limit applies.
  virtual absl::Status ComeToRest(int64_t timeout_ns) = 0;
  // Returns an error if the caller's results are useless to other ranks, because they were computed
  // from data that never arrived.
  virtual absl::Status Sound() const = 0;
  virtual ArraysAt arrays() const = 0;
  // Returns the stream on which jobs enqueue; null on the host.
  virtual StreamHandle stream() const = 0;

  // Ends the work and the thread. A running job may still use the worker, so the owner must call
  // Stop before it destroys the worker.
  virtual void Stop() = 0;
  // Ends the work; waiting threads and jobs that have not begun get `why`. Returns false if a
  // job has called a function of the caller, and the function does not return
  // (WorkerThread::StopSoon). Then Leave must be called.
  virtual bool StopSoon(const absl::Status& why) = 0;
  // Makes the thread call `last` when the job has returned. `last` may free the worker.
  virtual void Leave(absl::AnyInvocable<void() &&> last) = 0;
  // Must be called before StopSoon. Ends with `why` all waits for a job that is in a function of
  // the caller.
  virtual void Abandon(const absl::Status& why) = 0;
};

}  // namespace entrain
