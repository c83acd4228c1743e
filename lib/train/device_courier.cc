#include "lib/train/device_courier.h"

#include <algorithm>
#include <utility>

#include "lib/base/status.h"
#include "lib/train/placed_array.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<DeviceCourier>> DeviceCourier::Make(
    DeviceRoom* room, absl::AnyInvocable<void(const absl::Status&)> give_up) {
  ENTRAIN_ASSIGN_OR_RETURN(const StreamHandle stream, room->AddStream());
  ENTRAIN_ASSIGN_OR_RETURN(std::byte* const word, room->KeepPinned(sizeof(uint32_t)));
  return std::unique_ptr<DeviceCourier>(new DeviceCourier(
      room, std::move(give_up), stream, StreamWord(reinterpret_cast<uint32_t*>(word))));
}

DeviceCourier::~DeviceCourier() {
  EndJobs(absl::AbortedError("the object was destroyed"));
  courier_.Stop();
}

absl::StatusOr<uint32_t> DeviceCourier::Post(Job job, absl::AnyInvocable<void()> then) {
  auto mark = std::make_unique<DeviceMark>(room_->device());
  ENTRAIN_RETURN_IF_ERROR(mark->Record(room_->callers()));
  // Held until it is posted: a job that fails meanwhile would end the courier before that, and
  // nobody would ever come to this number.
  absl::MutexLock posting(&mutex_);
  ENTRAIN_RETURN_IF_ERROR(status_);
  const uint32_t number = ++posted_;
  courier_.Post([this, number, mark = std::move(mark), job = std::move(job),
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
      done_.Set(number);
    }
    return status;
  });
  return number;
}

absl::Status DeviceCourier::Run(const DeviceMark& mark, Job& job) {
  Courier::Doing("what the caller's stream does before it");
  ENTRAIN_RETURN_IF_ERROR(Annotate(AwaitMark(mark, room_->limit(), [this] { return status(); }),
                                   "where the caller's stream was"));
  Courier::Doing("");
  const KernelStream on(room_->device(), stream_, room_->limit_ns());
  ENTRAIN_RETURN_IF_ERROR(job());
  Courier::Doing("what it has enqueued on the device");
  return FinishKernels(room_->limit());
}

absl::Status DeviceCourier::Hold(uint32_t number) {
  absl::MutexLock lock(&mutex_);
  ENTRAIN_RETURN_IF_ERROR(status_);
  held_ = std::max(held_, number);
  return done_.Hold(room_->device(), room_->callers(), number);
}

uint32_t DeviceCourier::last() const {
  absl::MutexLock lock(&mutex_);
  return posted_;
}

absl::Status DeviceCourier::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

// Others are told first: who lets the caller's stream go on may be destroyed next.
void DeviceCourier::End(const absl::Status& why) {
  give_up_(why);
  absl::MutexLock lock(&mutex_);
  status_.Update(why);
  done_.Set(posted_);
}

bool DeviceCourier::StopSoon(const absl::Status& why) {
  EndJobs(why);
  return courier_.StopSoon();
}

void DeviceCourier::EndJobs(const absl::Status& why) {
  bool waited_for = false;
  {
    absl::MutexLock lock(&mutex_);
    waited_for = held_ == posted_;
  }
  if (waited_for) {
    Drain().IgnoreError();
  } else if (!courier_.idle()) {
    End(why);
  }
}

}  // namespace entrain
