// Runs the jobs of a training object beside the caller's computation: on a thread of the host
// (HostWorker), or on a thread and a stream of a device (DeviceWorker). The object's code is the
// same for both:
//
//   function   on the host                     on a device
//   Post       the thread runs the job after   the thread also waits for the earlier work on the
//              all earlier jobs                caller's stream
//   Hold       the caller's thread blocks      the caller's stream waits for the job
//              until the job is done
//   Start      the caller's thread runs the    the short job is posted
//              short job
//
// After the first job that fails, no job runs. Later jobs are dropped and count as done, with the
// error of the failed job.
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
  // Like Post. If the job succeeds, calls `then` after it. A wait for the job also waits until
  // `then` has returned.
  virtual absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) = 0;
  // Holds back jobs with a higher number until a later call allows them. kNoLimit holds back none.
  virtual void Limit(uint64_t number) = 0;
  // Blocks until the job and all jobs before it are done. Returns the first error of any of them.
  virtual absl::Status Wait(uint64_t number) = 0;
  absl::Status Drain() { return Wait(last()); }
  // Calls `then` once when the job is done, with the first error so far. Calls `then` before
  // returning, or later on the worker's thread, where `then` must not block.
  virtual void WhenDone(uint64_t number, Continuation then) = 0;
  // Returns the number of the last posted job, or 0.
  virtual uint64_t last() const = 0;
  // Returns the first error so far, without waiting.
  virtual absl::Status status() const = 0;

  // Makes the caller's next work run after this job and all jobs before it. Returns the first
  // error. Returns kFailedPrecondition if the host would block inside a callback that must not
  // block (CallbackScope).
  virtual absl::Status Hold(uint64_t number) = 0;
  // Returns true if the caller's next work runs after the job without a further Hold.
  virtual bool Holds(uint64_t number) const = 0;
  // Runs or posts a short job on arrays that job number `after` uses. The short job runs after job
  // `after`. Returns the number for Hold; 0: the short job is over.
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

  // Stops the worker and ends its thread. A running job may still use the worker, so the owner must
  // call Stop before it destroys the worker.
  virtual void Stop() = 0;
  // Stops the worker. Jobs that have not begun are dropped. On a device, waiting threads get the
  // error `why`; on the host, they get kAborted. Returns false if a job is in a function of the
  // caller that does not return (WorkerThread::StopSoon). Then Leave must be called.
  virtual bool StopSoon(const absl::Status& why) = 0;
  // Makes the thread call `last` when the job has returned. `last` may free the worker.
  virtual void Leave(absl::AnyInvocable<void() &&> last) = 0;
  // Must be called before StopSoon. If a job is in a function of the caller, ends all waits for
  // this job with the error `why`.
  virtual void Abandon(const absl::Status& why) = 0;
};

}  // namespace entrain
