#include "lib/device/cuda/launch.h"

namespace entrain {

using device_loops::kPack;

device_loops::Range RangeOf(int64_t count, absl::Span<const void* const> arrays) {
  constexpr uintptr_t kElement = sizeof(float);
  const auto aligned = [&](int64_t head) {
    return std::all_of(arrays.begin(), arrays.end(), [&](const void* array) {
      const auto place =
          reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>(head) * kElement;
      return array == nullptr || place % (kPack * kElement) == 0;
    });
  };
  for (int64_t head = 0; head < std::min<int64_t>(kPack, count); ++head) {
    if (aligned(head)) {
      return {count, head};
    }
  }
  return {count, count};
}

KernelStream& BoundStream() {
  KernelStream* const bound = KernelStream::Current();
  if (bound == nullptr) {
    __builtin_trap();  // a violation of cuda_kernels.h
  }
  return *bound;
}

CudaDevice& BoundDevice() {
  return static_cast<CudaDevice&>(BoundStream().device());
}

bool StartKernel(KernelId kernel, const void* args, int64_t arg_bytes, int64_t blocks) {
  if (arg_bytes != kKernelArgBytes[static_cast<size_t>(kernel)]) {
    __builtin_trap();  // arguments of another kernel
  }
  if (!BoundStream().status().ok()) {
    return false;  // after an error, do not wait for a stuck stream again
  }
  const absl::Status status =
      BoundDevice().Launch(kernel, args, static_cast<int>(blocks), BoundStream().stream());
  BoundStream().Note(status);
  return status.ok();
}

bool AwaitKernel(const ResultRoom& room) {
  absl::Status status = BoundDevice().Record(room.done, BoundStream().stream());
  if (status.ok()) {
    status = BoundDevice().Wait(room.done, BoundStream().limit());
  }
  BoundStream().Note(status);
  return status.ok();
}

}  // namespace entrain
