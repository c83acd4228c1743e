// The GPU of the trainer's tests: that of the fake driver and the fake cuBLAS, unless TEST_GPU=1
// asks for a real one.
#pragma once

#include <cstdlib>
#include <string>

#include <dlfcn.h>

#include "tests/support/fake_cuda/fake_driver.h"

namespace trainer_test {

inline bool OnRealGpu() {
  const char* const asked = std::getenv("TEST_GPU");  // NOLINT(concurrency-mt-unsafe)
  return asked != nullptr && std::string(asked) == "1";
}

// Must be called before the first GPU is opened. Programs that are started later use the same GPU.
inline void UseFakesUnlessReal() {
  if (!OnRealGpu()) {
    setenv("ENTRAIN_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);      // NOLINT(concurrency-mt-unsafe)
    setenv("TRAINER_CUBLAS_LIBRARY", FAKE_CUBLAS_LIBRARY, 1);  // NOLINT(concurrency-mt-unsafe)
  }
}

// A function that the fake driver exports (fake_driver.h).
template <typename F>
F* OfFake(const char* name) {
  void* const library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace trainer_test
