// The kernels. Each thread runs a loop of gpu_loops.h.
#include <cstdint>

#include "examples/trainer/gpu_loops.h"

namespace trainer {

struct GpuBlock {
  int index, blocks;
  double* shared;
  template <typename F>
  __device__ void Each(F f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

#define TRAINER_GPU_DEFINE(name, args, loop)                                                       \
  extern "C" __global__ void __launch_bounds__(kGpuThreads)                                        \
      trainer_##name(const __grid_constant__ args given) {                                         \
    __shared__ double shared[kGpuThreads + 1];                                                     \
    loop::Run(given, GpuBlock{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), shared}); \
  }
TRAINER_GPU_KERNELS(TRAINER_GPU_DEFINE)

}  // namespace trainer
