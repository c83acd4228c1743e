// A courier for what a caller orders by a stream of a device. A job begins when the device has come
// to where the caller's stream was when it was posted; what the caller puts on its stream later can
// be made to wait for a job. The host waits for neither.
//
//   caller's stream   ... | mark   more work ...            | word >= 1   what needs the job
//   courier               posts |~~~~ job 1, on a stream of its own ~~~~| word = 1
//
// The first job that fails ends the work (courier.h); then nothing holds the caller's stream any
// more.
//
// Thread safety: one thread posts, holds and stops; jobs are on another.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/train/courier.h"
#include "lib/train/device_room.h"

namespace entrain {

class DeviceCourier {
 public:
  using Job = absl::AnyInvocable<absl::Status()>;

  // `room` outlives this; its limit is for how late the caller's stream may be, and for the device
  // with a job. `give_up`, before anybody is let go: makes other ranks' calls, and the job that
  // runs, fail.
  static absl::StatusOr<std::unique_ptr<DeviceCourier>> Make(
      DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up);
  ~DeviceCourier();

  // Gives the job's number, from 1. The job runs with its own stream bound (KernelStream), and has
  // the device through with all that it enqueues there before the caller's stream goes on. `then`:
  // between the two, unless it failed.
  absl::StatusOr<uint32_t> Post(Job job, absl::AnyInvocable<void()> then = {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What follows on the caller's stream waits for the job of this number, and so for all before it.
  // Or the first error.
  absl::Status Hold(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job is done. The first error of any. Any thread.
  absl::Status Wait(uint32_t number) { return courier_.Wait(number); }
  absl::Status Drain() { return courier_.Drain(); }
  // As Courier's.
  void WhenDone(uint32_t number, Courier::Continuation then) {
    courier_.WhenDone(number, std::move(then));
  }
  // Where jobs are.
  StreamHandle stream() const { return stream_; }
  uint32_t last() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The first error so far. Any thread.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it: `why` to whoever asks, and to jobs that have not begun. But where the caller's stream
  // waits for the last job all are done first. False: as Courier's, and Leave must follow.
  bool StopSoon(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(absl::AnyInvocable<void() &&> last) { courier_.Leave(std::move(last)); }
  // As Courier's.
  void Abandon(const absl::Status& why) { courier_.Abandon(why); }

 private:
  DeviceCourier(DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up,
                StreamHandle stream, StreamWord done)
      : room_(room),
        give_up_(std::move(give_up)),
        stream_(stream),
        done_(done),
        courier_(room->limit_ns(), [this](const absl::Status& why) { End(why); }) {}
  absl::Status Run(const DeviceMark& mark, Job& job);
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndJobs(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  DeviceRoom* const room_;
  absl::AnyInvocable<void(const absl::Status&)> give_up_;
  const StreamHandle stream_;
  mutable absl::Mutex mutex_;
  StreamWord done_ ABSL_GUARDED_BY(mutex_);
  uint32_t posted_ ABSL_GUARDED_BY(mutex_) = 0, held_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Courier courier_;  // last: its jobs use the rest
};

}  // namespace entrain
