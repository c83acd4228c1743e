#include "lib/device/arrays.h"

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

absl::Status CheckStream(Device& device, StreamHandle stream) {
  DeviceMark mark(device);
  return Annotate(mark.Record(stream),
                  absl::StrCat("stream: not one of device ", device.ordinal()));
}

absl::Status OrderStreams(Device& device, StreamHandle later, StreamHandle earlier) {
  DeviceMark mark(device);
  ENTRAIN_RETURN_IF_ERROR(mark.Record(earlier));
  return device.AwaitEvent(later, mark.event());
}

absl::Status SwitchStream(Device& device, StreamHandle from, StreamHandle to) {
  ENTRAIN_RETURN_IF_ERROR(CheckStream(device, to));
  return OrderStreams(device, to, from);
}

}  // namespace entrain
