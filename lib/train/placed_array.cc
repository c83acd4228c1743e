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
  KernelStream bound(*at.device, at.stream);
  body();
  return bound.status();
}

absl::Status FinishStream(const ArraysAt& at, Deadline give_up) {
  if (at.device == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(const EventHandle event, at.device->CreateEvent());
  absl::Status status = at.device->Record(event, at.stream);
  if (status.ok()) {
    status = at.device->Wait(event, give_up);
  }
  at.device->DestroyEvent(event);
  return Annotate(status, absl::StrCat("the stream on device ", at.device->ordinal()));
}

}  // namespace entrain
