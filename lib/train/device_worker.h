// A worker for jobs on arrays of a device. The caller's own work on these arrays is in the order of
// one stream, the caller's stream. Post records a mark on this stream. The job begins when the
// device has reached the mark. Hold makes later work on the caller's stream wait for a job. Neither
// Post nor Hold waits for a job.
//
//   caller's stream   ... | mark   more work ...            | word >= 1   work that needs the job
//   worker                posts |~~~~ job 1, on a stream of its own ~~~~| word = 1
//
// If a job fails, no further job runs (worker_thread.h), and the caller's stream no longer waits
// for jobs.
//
// Thread safety: as Worker.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/train/device_room.h"
#include "lib/train/worker.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class DeviceWorker final : public Worker {
 public:
  // `room` must outlive this object. Its time limit applies to two waits: until the caller's stream
  // reaches the mark of a job, and until the device has finished the work of a job. The worker
  // calls `give_up` before it releases any waiting thread. `give_up` must make the running job and
  // the calls of other ranks fail. `sound` implements Sound. Any thread may call it.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Make(
      DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up,
      absl::AnyInvocable<absl::Status() const> sound = absl::OkStatus);
  ~DeviceWorker() override { DeviceWorker::Stop(); }

  // The worker's own stream is bound while the job runs (KernelStream). When the device has
  // finished all work that the job has enqueued on this stream, the worker calls `then`. Then the
  // caller's stream may continue.
  absl::StatusOr<uint64_t> PostThen(Job job, absl::AnyInvocable<void()> then) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Limit(uint64_t number) override { thread_.Limit(number); }
  absl::Status Wait(uint64_t number) override { return thread_.Wait(number); }
  void WhenDone(uint64_t number, Continuation then) override {
    thread_.WhenDone(number, std::move(then));
  }
  uint64_t last() const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Hold(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool Holds(uint64_t number) const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> Start(uint64_t /*after*/, Job job) override {
    return Post(std::move(job));
  }
  absl::Status RunHere(absl::FunctionRef<absl::Status()> body) override;
  absl::Status ComeToRest(int64_t timeout_ns) override;
  absl::Status Sound() const override { return sound_(); }
  ArraysAt arrays() const override {
    return {&room_->device(), room_->callers(), room_->limit_ns()};
  }
  StreamHandle stream() const override { return stream_; }

  // If the caller's stream waits for the last job, Stop and StopSoon wait until all jobs are done.
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool StopSoon(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(absl::AnyInvocable<void() &&> last) override { thread_.Leave(std::move(last)); }
  void Abandon(const absl::Status& why) override { thread_.Abandon(why); }

 private:
  DeviceWorker(DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up,
               absl::AnyInvocable<absl::Status() const> sound, StreamHandle stream, StreamWord done)
      : room_(room),
        give_up_(std::move(give_up)),
        sound_(std::move(sound)),
        stream_(stream),
        done_(done),
        thread_(room->limit_ns(), [this](const absl::Status& why) { End(why); }) {}
  absl::Status Run(const DeviceMark& mark, Job& job);
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndJobs(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  DeviceRoom* const room_;
  absl::AnyInvocable<void(const absl::Status&)> give_up_;
  absl::AnyInvocable<absl::Status() const> sound_;
  const StreamHandle stream_;
  mutable absl::Mutex mutex_;
  StreamWord done_ ABSL_GUARDED_BY(mutex_);
  // Numbers of jobs: posted_ is the last job that was posted, held_ the last job for which the
  // caller's stream waits. The word has the low 32 bits of the number of the last finished job.
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0, held_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  WorkerThread thread_;  // last member: its jobs use the other members
};

}  // namespace entrain
