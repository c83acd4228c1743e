#include "tests/support/fake_cuda/kernels.h"

#include <cstring>
#include <type_traits>

#include "tests/support/fake_cuda/memory.h"
#include "transports/cuda/kernel_list.h"
#include "transports/cuda/loops.h"

namespace entrain::device_loops {
namespace {

struct CpuBlock {
  int index, blocks;
  double* shared;
  template <typename F>
  void Each(F f) const {
    for (int thread = 0; thread < kThreads; ++thread) {
      f(thread);
    }
  }
  template <typename F>
  void Last(F f) const {
    Each(f);
  }
};

template <typename Args>
bool Translate(void* raw) {
  bool found = true;
  static_cast<Args*>(raw)->ForEachPointer([&](auto*& pointer) {
    if (pointer != nullptr) {
      void* const seen = fake_cuda::Memory().Seen(reinterpret_cast<uintptr_t>(pointer), 1);
      found = found && seen != nullptr;
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(seen);
    }
  });
  return found;
}

template <typename Loop, typename Args>
void RunAll(const void* raw, int blocks) {
  double shared[kThreads];
  for (int index = 0; index < blocks; ++index) {
    const CpuBlock block = {index, blocks, shared};
    Loop::Run(*static_cast<const Args*>(raw), block);
  }
}

template <typename Loop>
struct Unwrap;
template <typename Loop>
struct Unwrap<void(Loop)> {
  using type = Loop;
};

constexpr fake_cuda::FakeKernel kTable[] = {
#define FAKE_CUDA_KERNEL(name, args, loop)          \
  {"entrain_" #name, sizeof(args), Translate<args>, \
   RunAll<typename Unwrap<void(loop)>::type, args>},
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
