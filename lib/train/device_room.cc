#include "lib/train/device_room.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/device/arrays.h"
#include "lib/device/registry.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<DeviceRoom>> DeviceRoom::Open(Device& device, StreamHandle callers,
                                                             int64_t limit_ns) {
  ENTRAIN_RETURN_IF_ERROR(CheckStream(device, callers));
  return std::unique_ptr<DeviceRoom>(
      new DeviceRoom(device, std::make_shared<Callers>(callers), limit_ns));
}

std::unique_ptr<DeviceRoom> DeviceRoom::Beside(const DeviceRoom& other, int64_t limit_ns) {
  return std::unique_ptr<DeviceRoom>(new DeviceRoom(other.device_, other.callers_, limit_ns));
}

absl::Status DeviceRoom::SetCallers(StreamHandle stream) {
  ENTRAIN_RETURN_IF_ERROR(SwitchStream(device_, callers(), stream));
  callers_->store(stream, std::memory_order_release);
  return absl::OkStatus();
}

DeviceRoom::~DeviceRoom() {
  absl::MutexLock lock(&mutex_);
  for (void* const memory : memory_) {
    device_.Free(memory);
  }
  for (void* const memory : pinned_) {
    device_.FreePinned(memory);
  }
  for (const StreamHandle stream : streams_) {
    device_.DestroyStream(stream);
  }
}

absl::Status DeviceRoom::CheckHolds(const char* name, const void* array) const {
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, ProcessDevices());
  ENTRAIN_ASSIGN_OR_RETURN(const Devices::Place place, devices->PlaceOf(array));
  return place.kind == MemoryKind::kDevice && place.device == &device_
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrFormat("%s %p is not memory of device %d, as memory 1 says", name,
                                   array, device_.ordinal()));
}

absl::StatusOr<StreamHandle> DeviceRoom::AddStream() {
  ENTRAIN_ASSIGN_OR_RETURN(const StreamHandle stream, device_.CreateStream());
  absl::MutexLock lock(&mutex_);
  streams_.push_back(stream);
  return stream;
}

absl::StatusOr<std::byte*> DeviceRoom::Keep(int64_t bytes) {
  ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.Allocate(bytes));
  absl::MutexLock lock(&mutex_);
  memory_.push_back(memory);
  return static_cast<std::byte*>(memory);
}

absl::StatusOr<std::byte*> DeviceRoom::KeepPinned(int64_t bytes) {
  ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.AllocatePinned(bytes));
  std::memset(memory, 0, static_cast<size_t>(bytes));
  absl::MutexLock lock(&mutex_);
  pinned_.push_back(memory);
  return static_cast<std::byte*>(memory);
}

}  // namespace entrain
