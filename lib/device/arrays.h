// Arrays in host memory or in device memory, for objects that support both. ArraysAt says where the
// caller's arrays lie. A PlacedArray is memory that an object owns, on the host or on a device.
// ComputeAt runs code that works on arrays. The code calls CurrentKernels, CopyArray and ZeroArray
// of device.h, which work on the host or on the device. So one version of the code serves both.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/device/device.h"
#include "lib/memory/buffer.h"

namespace entrain {

// The device and the stream of the caller's arrays. Work on the arrays is done in order with the
// stream's other work.
struct ArraysAt {
  Device* device = nullptr;  // null: in host memory
  StreamHandle stream = nullptr;
  int64_t limit_ns = kDefaultTimeoutNs;  // limit of a wait for a kernel
};

// Uninitialised memory that this object owns, on a device or on the host. If the memory is on a
// device, the destructor waits for all streams of the device.
class PlacedArray {
 public:
  PlacedArray() = default;
  // Allocates on the device, or on the host if `device` is null.
  static absl::StatusOr<PlacedArray> Allocate(Device* device, int64_t bytes);
  PlacedArray(PlacedArray&& other) noexcept { Swap(other); }
  PlacedArray& operator=(PlacedArray&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~PlacedArray();
  std::byte* data() const { return device_ == nullptr ? host_.data() : there_; }
  int64_t size() const { return device_ == nullptr ? host_.size() : bytes_; }

 private:
  void Swap(PlacedArray& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    std::swap(there_, other.there_);
    std::swap(bytes_, other.bytes_);
  }
  OwnedBuffer host_;
  Device* device_ = nullptr;
  std::byte* there_ = nullptr;
  int64_t bytes_ = 0;
};

// Runs `body`. Inside it, CurrentKernels, CopyArray and ZeroArray work on arrays at `at`. When
// ComputeAt returns, work on the host is done, and work on a device is enqueued on the stream.
// Returns the first error of the device. Calls of ComputeAt must not be nested.
absl::Status ComputeAt(const ArraysAt& at, absl::FunctionRef<void()> body);

// Returns kInvalidArgument unless the stream belongs to the device.
absl::Status CheckStream(Device& device, StreamHandle stream);
// Makes later work on the stream `later` wait for the present work on the stream `earlier`.
absl::Status OrderStreams(Device& device, StreamHandle later, StreamHandle earlier);
// For an object that changes its stream. Checks `to`, and makes later work on `to` wait for the
// present work on `from`.
absl::Status SwitchStream(Device& device, StreamHandle from, StreamHandle to);

}  // namespace entrain
