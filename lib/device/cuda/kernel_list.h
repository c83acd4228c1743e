// The list of kernels. Each entry has a name, a struct of arguments, and a loop defined in loops.h.
#pragma once

#include <cstdint>

#include "lib/device/cuda/kernel_args.h"

#define ENTRAIN_CUDA_KERNELS(X)                             \
  X(scale, FloatsArgs, Scale)                               \
  X(ascend, FloatsArgs, Ascend)                             \
  X(add_sharpness, FloatsArgs, AddSharpness)                \
  X(sum_of_squares, SumArgs, SumOfSquares)                  \
  X(sum_of_squared_products, SumArgs, SumOfSquaredProducts) \
  X(sgd_step, SgdStepArgs, SgdStep)                         \
  X(adamw_step, AdamwStepArgs, AdamwStep)                   \
  X(agd_step, AgdStepArgs, AgdStep)

namespace entrain {

enum class KernelId : int32_t {
#define ENTRAIN_CUDA_ID(name, args, loop) name,
  ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_ID)
#undef ENTRAIN_CUDA_ID
      kCount
};
constexpr int kKernelCount = static_cast<int>(KernelId::kCount);

// Names in the module, such as "entrain_sgd_step".
constexpr const char* kKernelNames[] = {
#define ENTRAIN_CUDA_NAME(name, args, loop) "entrain_" #name,
    ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_NAME)
#undef ENTRAIN_CUDA_NAME
};
constexpr int64_t kKernelArgBytes[] = {
#define ENTRAIN_CUDA_BYTES(name, args, loop) sizeof(device_loops::args),
    ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_BYTES)
#undef ENTRAIN_CUDA_BYTES
};

}  // namespace entrain
