#include "lib/train/placed_array.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

absl::StatusOr<PlacedArray> PlacedArray::Allocate(Device* device, int64_t bytes) {
  PlacedArray array;
  if (device == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(array.host_, OwnedBuffer::Allocate(bytes));
  } else if (bytes > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device->Allocate(bytes));
    array.device_ = device;
    array.there_ = static_cast<std::byte*>(memory);
    array.bytes_ = bytes;
  }
  return array;
}

PlacedArray::~PlacedArray() {
  if (device_ != nullptr) {
    device_->Free(there_);
  }
}

absl::Status ComputeAt(const ArraysAt& at, absl::FunctionRef<void()> body) {
  if (at.device == nullptr) {
    body();
    return absl::OkStatus();
  }
  KernelStream bound(*at.device, at.stream, at.limit_ns);
  body();
  return bound.status();
}

absl::Status AwaitMark(const DeviceMark& mark, Deadline give_up,
                       absl::FunctionRef<absl::Status()> may_go_on) {
  const Clock& clock = Clock::Real();
  const int64_t begun = clock.Now();
  for (;;) {
    const auto reached = mark.Reached();
    if (!reached.ok() || *reached) {
      return reached.status();
    }
    ENTRAIN_RETURN_IF_ERROR(may_go_on());
    const int64_t now = clock.Now();
    if (give_up.Passed(now)) {
      return absl::DeadlineExceededError(absl::StrCat("the device has not come so far after ",
                                                      (now - begun) / kMillisecond, " ms"));
    }
    PauseAfter(now - begun);
  }
}

absl::Status FinishStream(const ArraysAt& at, Deadline give_up,
                          absl::FunctionRef<absl::Status()> may_go_on) {
  if (at.device == nullptr) {
    return absl::OkStatus();
  }
  DeviceMark mark(*at.device);
  absl::Status status = mark.Record(at.stream);
  status.Update(status.ok() ? AwaitMark(mark, give_up, may_go_on) : status);
  return Annotate(status, absl::StrCat("the stream on device ", at.device->ordinal()));
}

absl::Status FinishKernels(Deadline give_up) {
  const KernelStream& on = *KernelStream::Current();
  ENTRAIN_RETURN_IF_ERROR(on.status());
  return FinishStream({&on.device(), on.stream()}, give_up);
}

absl::Status CheckStream(Device& device, StreamHandle stream) {
  DeviceMark mark(device);
  return Annotate(mark.Record(stream),
                  absl::StrCat("stream: not one of device ", device.ordinal()));
}

}  // namespace entrain
