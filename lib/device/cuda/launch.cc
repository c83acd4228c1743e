#include "lib/device/cuda/launch.h"

namespace entrain {

device_loops::Range RangeOf(int64_t count, int64_t width, absl::Span<const Operand> operands) {
  const auto aligned = [&](int64_t head) {
    return std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
      const auto place = reinterpret_cast<uintptr_t>(operand.memory) +
                         static_cast<uintptr_t>(head * operand.element);
      const auto pack = static_cast<uintptr_t>(std::min<int64_t>(16, width * operand.element));
      return operand.memory == nullptr || place % pack == 0;
    });
  };
  for (int64_t head = 0; head < std::min(width, count); ++head) {
    if (aligned(head)) {
      return {count, head};
    }
  }
  return {count, count};
}

KernelId OfWidth(KernelId first, int64_t bytes) {
  const int32_t step = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
  return static_cast<KernelId>(static_cast<int32_t>(first) + step);
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
