#include "lib/train/device_worker.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/train/device_waits.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<DeviceWorker>> DeviceWorker::Make(
    DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up,
    absl::AnyInvocable<absl::Status() const> sound) {
  ENTRAIN_ASSIGN_OR_RETURN(const StreamHandle stream, room->AddStream());
  ENTRAIN_ASSIGN_OR_RETURN(std::byte* const word, room->KeepPinned(sizeof(uint32_t)));
  return std::unique_ptr<DeviceWorker>(
      new DeviceWorker(room, std::move(give_up), std::move(sound), stream,
                       StreamWord(reinterpret_cast<uint32_t*>(word))));
}

void DeviceWorker::Stop() {
  EndJobs(absl::AbortedError("the object was destroyed"));
  thread_.Stop();
}

absl::StatusOr<uint64_t> DeviceWorker::PostThen(Job job, absl::AnyInvocable<void()> then) {
  auto mark = std::make_unique<DeviceMark>(room_->device());
  ENTRAIN_RETURN_IF_ERROR(mark->Record(room_->callers()));
  // Holds the lock until the job is posted. Otherwise another job could fail between the check of
  // status_ and the post. Then no thread would set the word to this job's number.
  absl::MutexLock posting(&mutex_);
  ENTRAIN_RETURN_IF_ERROR(status_);
  const uint64_t number = ++posted_;
  thread_.Post([this, number, mark = std::move(mark), job = std::move(job),
                then = std::move(then)]() mutable {
    const absl::Status status = Run(*mark, job);
    if (!status.ok()) {
      End(status);
      return status;
    }
    if (then) {
      then();
    }
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) {
      done_.Set(static_cast<uint32_t>(number));
    }
    return status;
  });
  return number;
}

absl::Status DeviceWorker::Run(const DeviceMark& mark, Job& job) {
  WorkerThread::Doing("what the caller's stream does before it");
  ENTRAIN_RETURN_IF_ERROR(Annotate(WaitForMark(mark, room_->limit(), [this] { return status(); }),
                                   "where the caller's stream was"));
  WorkerThread::Doing("");
  const KernelStream on(room_->device(), stream_, room_->limit_ns());
  ENTRAIN_RETURN_IF_ERROR(job());
  WorkerThread::Doing("what it has enqueued on the device");
  return WaitForKernels(room_->limit());
}

absl::Status DeviceWorker::Hold(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  ENTRAIN_RETURN_IF_ERROR(status_);
  if (number <= held_) {
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(
      done_.Hold(room_->device(), room_->callers(), static_cast<uint32_t>(number)));
  held_ = number;
  return absl::OkStatus();
}

bool DeviceWorker::Holds(uint64_t number) const {
  absl::MutexLock lock(&mutex_);
  return held_ >= number;
}

absl::Status DeviceWorker::RunHere(absl::FunctionRef<absl::Status()> body) {
  const KernelStream on(room_->device(), room_->callers(), room_->limit_ns());
  ENTRAIN_RETURN_IF_ERROR(body());
  return on.status();
}

// Drains the jobs first, so that they make no calls afterwards. On a device, neither the calls of
// jobs nor the calls that follow this function have tags.
absl::Status DeviceWorker::ComeToRest(int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(Drain());
  ENTRAIN_RETURN_IF_ERROR(
      WaitForStream(arrays(), timeout_ns > 0 ? Deadline::After(timeout_ns) : room_->limit()));
  return Sound();
}

uint64_t DeviceWorker::last() const {
  absl::MutexLock lock(&mutex_);
  return posted_;
}

absl::Status DeviceWorker::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

// Calls give_up_ before it releases the caller's stream, because the worker may be destroyed as
// soon as this stream continues.
void DeviceWorker::End(const absl::Status& why) {
  give_up_(why);
  absl::MutexLock lock(&mutex_);
  status_.Update(why);
  done_.Set(static_cast<uint32_t>(posted_));
}

bool DeviceWorker::StopSoon(const absl::Status& why) {
  EndJobs(why);
  return thread_.StopSoon();
}

void DeviceWorker::EndJobs(const absl::Status& why) {
  bool waited_for = false;
  {
    absl::MutexLock lock(&mutex_);
    waited_for = held_ == posted_;
  }
  if (waited_for) {
    Drain().IgnoreError();
  } else if (!thread_.idle()) {
    End(why);
  }
}

}  // namespace entrain
