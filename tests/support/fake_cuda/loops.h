// Makes kernels from loops: a loop that is written for one thread of a grid runs on the host.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tests/support/fake_cuda/memory.h"

namespace fake_cuda {

template <int kThreads>
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
      void* const seen = Memory().Seen(reinterpret_cast<uintptr_t>(pointer), 1);
      found = found && seen != nullptr;
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(seen);
    }
  });
  return found;
}

template <typename Loop, typename Args, int kThreads, int kShared>
void RunAll(const void* raw, int blocks) {
  double shared[kShared];
  for (int index = 0; index < blocks; ++index) {
    const CpuBlock<kThreads> block = {index, blocks, shared};
    Loop::Run(*static_cast<const Args*>(raw), block);
  }
}

}  // namespace fake_cuda
