// Arrays of an object that works on host or device memory alike: where they are, memory of its own there, and what computes on
// them. Code over such arrays is written once (CurrentKernels, CopyArray, ZeroArray of device.h) and runs in ComputeAt.
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

// The caller's: calls of the object are ordered with the stream.
struct ArraysAt {
  Device* device = nullptr;  // null: in host memory
  StreamHandle stream = nullptr;
  int64_t limit_ns = kDefaultTimeoutNs;  // of a wait for a kernel
};

// Memory of the object's own, there. Not initialised. Freeing device memory waits for all streams of the device.
class PlacedArray {
 public:
  PlacedArray() = default;
  // `device` null: of the host.
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

// Runs `body` so that CurrentKernels, CopyArray and ZeroArray work on arrays that are there: done when it returns, or enqueued
// on the stream. The first error of the device. Not nested.
absl::Status ComputeAt(const ArraysAt& at, absl::FunctionRef<void()> body);

// kInvalidArgument unless the stream is one of the device's.
absl::Status CheckStream(Device& device, StreamHandle stream);
// What follows on `later` runs after what is on `earlier` now.
absl::Status OrderStreams(Device& device, StreamHandle later, StreamHandle earlier);
// For an object whose caller goes on with another stream, `to`: checks it, and orders it behind the one before.
absl::Status SwitchStream(Device& device, StreamHandle from, StreamHandle to);

}  // namespace entrain
