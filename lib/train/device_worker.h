// A worker for jobs on arrays of a device. The caller orders its own work on these arrays by a
// stream. When a job is posted, a mark is recorded on the caller's stream. The job begins when the
// device has reached this mark. Later work on the caller's stream can be made to wait for a job.
// The caller's thread blocks neither until the job begins nor until it ends.
//
//   caller's stream   ... | mark   more work ...            | word >= 1   work that needs the job
//   worker                posts |~~~~ job 1, on a stream of its own ~~~~| word = 1
//
// After the first job that fails no further job runs (worker_thread.h), and the caller's stream is
// no longer held.
//
// Thread safety: that of Worker.
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
  // `room` must outlive this object. The room's time limit applies to two waits: until the caller's
  // stream reaches the mark of a job, and until the device has finished the work of a job.
  // `give_up` is called before any waiting thread is released; it must make the calls of other
  // ranks and the running job fail. `sound` is the implementation of Sound; any thread may call it.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Make(
      DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up,
      absl::AnyInvocable<absl::Status() const> sound = absl::OkStatus);
  ~DeviceWorker() override { DeviceWorker::Stop(); }

  // The job runs with the worker's own stream bound (KernelStream). The device finishes all work
  // that the job enqueues there before the caller's stream continues. `then` runs after this work,
  // and before the caller's stream continues.
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

  // If the caller's stream waits for the last job, Stop and StopSoon let all jobs finish first.
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
  // Numbers of jobs: the last job that was posted, and the last job for which the caller's stream
  // waits. The word holds the low 32 bits of the number of the last finished job.
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0, held_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  WorkerThread thread_;  // last member: its jobs use the others
};

}  // namespace entrain
