#include "tests/support/fake_cuda/kernels.h"

#include <cstring>

#include "lib/device/cuda/kernel_list.h"
#include "lib/device/cuda/loops.h"
#include "tests/support/fake_cuda/loops.h"

namespace entrain::device_loops {
namespace {

template <typename Loop>
struct Unwrap;
template <typename Loop>
struct Unwrap<void(Loop)> {
  using type = Loop;
};

constexpr fake_cuda::FakeKernel kTable[] = {
#define FAKE_CUDA_KERNEL(name, args, loop)                     \
  {"entrain_" #name, sizeof(args), fake_cuda::Translate<args>, \
   fake_cuda::RunAll<typename Unwrap<void(loop)>::type, args, kThreads, kThreads>},
    ENTRAIN_CUDA_KERNELS(FAKE_CUDA_KERNEL)
#undef FAKE_CUDA_KERNEL
};

}  // namespace
}  // namespace entrain::device_loops

namespace fake_cuda {

const FakeKernel* FindKernel(const char* name) {
  for (const FakeKernel& kernel : entrain::device_loops::kTable) {
    if (std::strcmp(kernel.name, name) == 0) {
      return &kernel;
    }
  }
  return nullptr;
}

int ThreadsOfABlock() {
  return entrain::device_loops::kThreads;
}

}  // namespace fake_cuda
