#include "lib/api/array_place.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/api/arguments.h"
#include "lib/base/status.h"
#include "lib/device/registry.h"

namespace entrain::api {

absl::Status CheckArrayPlace(const ArrayPlace& place) {
  if (place.memory != ENTRAIN_MEMORY_HOST && place.memory != ENTRAIN_MEMORY_DEVICE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory ", place.memory, " is not ENTRAIN_MEMORY_HOST or ENTRAIN_MEMORY_DEVICE"));
  }
  if (place.memory == ENTRAIN_MEMORY_HOST) {
    return place.stream == nullptr
               ? absl::OkStatus()
               : absl::InvalidArgumentError("stream is not NULL, but memory is host memory");
  }
  return ProcessDevices().status();
}

absl::Status SetStream(void* stream, ArrayPlace* place) {
  if (place->memory == ENTRAIN_MEMORY_HOST) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "stream %p: the object was made for host memory, which has no stream", stream));
  }
  place->stream = stream;
  return absl::OkStatus();
}

absl::StatusOr<Device*> DeviceOf(const ArrayPlace& place, absl::Span<const NamedArray> arrays) {
  Device* device = nullptr;
  if (place.memory == ENTRAIN_MEMORY_HOST) {
    return device;
  }
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, ProcessDevices());
  for (const NamedArray& each : arrays) {
    if (each.array == nullptr) {
      continue;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Devices::Place where, devices->PlaceOf(each.array));
    if (where.kind != MemoryKind::kDevice || (device != nullptr && where.device != device)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s %p is not memory of %s, as memory 1 says", each.name, each.array,
          device == nullptr ? "a device" : absl::StrCat("device ", device->ordinal())));
    }
    device = where.device;
  }
  return device;
}

absl::Status CheckHostBuffer(const char* name, const void* buffer, int64_t bytes, DType dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckBuffer(name, buffer, bytes, dtype));
  Devices* const devices = bytes > 0 ? DevicesInUse() : nullptr;
  if (devices == nullptr) {
    return absl::OkStatus();
  }
  const absl::StatusOr<Devices::Place> where = devices->PlaceOf(buffer);
  if (where.ok() && where->kind == MemoryKind::kDevice) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s %p is memory of device %d; give an array in host memory, and copy (see "
                        "\"host memory\" in entrain/train.h)",
                        name, buffer, where->device->ordinal()));
  }
  return absl::OkStatus();
}

absl::Status RunWhere(const ArrayPlace& place, absl::Span<const NamedArray> arrays,
                      absl::FunctionRef<void()> body) {
  ENTRAIN_ASSIGN_OR_RETURN(Device* const device, DeviceOf(place, arrays));
  if (device == nullptr) {
    body();
    return absl::OkStatus();
  }
  KernelStream bound(*device, place.stream, place.limit_ns);
  body();
  return bound.status();
}

}  // namespace entrain::api
