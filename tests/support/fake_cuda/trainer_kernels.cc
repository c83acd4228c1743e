#include <cstring>

#include "examples/trainer/gpu_args.h"
#include "examples/trainer/gpu_loops.h"
#include "tests/support/fake_cuda/kernels.h"
#include "tests/support/fake_cuda/loops.h"

namespace fake_cuda {
namespace {

using namespace trainer;  // NOLINT(google-build-using-namespace): loops and arguments are all there is

constexpr FakeKernel kTable[] = {
#define FAKE_CUDA_KERNEL(name, args, loop)          \
  {"trainer_" #name, sizeof(args), Translate<args>, \
   RunAll<loop, args, kGpuThreads, kGpuThreads + 1>},
    TRAINER_GPU_KERNELS(FAKE_CUDA_KERNEL)
#undef FAKE_CUDA_KERNEL
};

}  // namespace

const FakeKernel* FindTrainerKernel(const char* name) {
  for (const FakeKernel& kernel : kTable) {
    if (std::strcmp(kernel.name, name) == 0) {
      return &kernel;
    }
  }
  return nullptr;
}

}  // namespace fake_cuda
