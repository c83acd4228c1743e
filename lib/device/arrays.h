// Arrays in host or device memory, for objects that work on both kinds of memory. ArraysAt says
// where the caller's arrays lie. PlacedArray is memory that an object owns, on the same device or
// on the host. ComputeAt runs code on arrays in host or device memory. This code uses
// CurrentKernels, CopyArray and ZeroArray of device.h, so it is written only once.
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

// The device and the stream of the caller's arrays. Calls on the object that works on these arrays
// are ordered with the stream.
struct ArraysAt {
  Device* device = nullptr;  // null: in host memory
  StreamHandle stream = nullptr;
  int64_t limit_ns = kDefaultTimeoutNs;  // limit of a wait for a kernel
};

// Uninitialised memory that this object owns, on a device or on the host. Freeing device memory
// waits for all streams of the device.
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

// Runs `body` so that CurrentKernels, CopyArray and ZeroArray work on arrays at `at`. When this
// returns, the work is done, or enqueued on the stream. Returns the first error of the device. Must
// not be nested.
absl::Status ComputeAt(const ArraysAt& at, absl::FunctionRef<void()> body);

// Returns kInvalidArgument unless the stream belongs to the device.
absl::Status CheckStream(Device& device, StreamHandle stream);
// Orders later work on `later` behind the present work on `earlier`.
absl::Status OrderStreams(Device& device, StreamHandle later, StreamHandle earlier);
// Moves the calls on an object from the stream `from` to the stream `to`: checks `to`, and orders
// later work on `to` behind the present work on `from`.
absl::Status SwitchStream(Device& device, StreamHandle from, StreamHandle to);

}  // namespace entrain
