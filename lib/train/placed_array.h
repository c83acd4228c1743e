// Where the arrays of a training object are, and what computes on them: the CPU at once, or a device, on a stream.
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

// Runs `body` so that CurrentKernels, CopyArray and ZeroArray (lib/device/device.h) work on arrays that are there: done when
// it returns, or enqueued on the stream. The first error of the device. Not nested.
absl::Status ComputeAt(const ArraysAt& at, absl::FunctionRef<void()> body);

// The host waits until the mark is reached. An error of `may_go_on` ends that early.
// kDeadlineExceeded when the time is up.
absl::Status AwaitMark(const DeviceMark& mark, Deadline give_up,
                       absl::FunctionRef<absl::Status()> may_go_on);
// The same until the stream is through with what is on it; at once where there is none.
absl::Status FinishStream(const ArraysAt& at, Deadline give_up,
                          absl::FunctionRef<absl::Status()> may_go_on = absl::OkStatus);
// kInvalidArgument unless the stream is one of the device's.
absl::Status CheckStream(Device& device, StreamHandle stream);
// The same with the stream that the calling thread has bound (KernelStream); its first error.
absl::Status FinishKernels(Deadline give_up);

}  // namespace entrain
