// The kernels. Each thread runs one of the loops that loops.h defines.
#include <cstdint>

#include "lib/device/cuda/kernel_list.h"
#include "lib/device/cuda/loops.h"

namespace entrain::device_loops {

struct GpuBlock {
  int index, blocks;
  double* shared;
  template <typename F>
  __device__ void Each(F f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <typename F>
  __device__ void Last(F f) const {
    f(static_cast<int>(threadIdx.x));
  }
};

template <typename Loop>
struct Unwrap;
template <typename Loop>
struct Unwrap<void(Loop)> {
  using type = Loop;
};

template <typename Loop, typename Args>
__device__ void RunLoop(const Args& args) {
  __shared__ double shared[kThreads];
  const GpuBlock block = {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), shared};
  Loop::Run(args, block);
}

#define ENTRAIN_CUDA_DEFINE(name, args, loop)              \
  extern "C" __global__ void __launch_bounds__(kThreads)   \
      entrain_##name(const __grid_constant__ args given) { \
    RunLoop<typename Unwrap<void(loop)>::type>(given);     \
  }
ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_DEFINE)

}  // namespace entrain::device_loops
