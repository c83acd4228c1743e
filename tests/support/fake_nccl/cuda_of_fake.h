// The functions of the fake driver (tests/support/fake_cuda) that the fake NCCL needs, of the copy
// that the program has loaded.
#pragma once

#include <cstddef>

namespace fake_nccl {

struct Cuda {
  int (*cuLaunchHostFunc)(void* stream, void (*function)(void*), void* argument) = nullptr;
  int (*cuCtxGetDevice)(int* ordinal) = nullptr;
  void* (*Seen)(const void* memory, size_t bytes) = nullptr;
};

// All null when there is no fake driver.
const Cuda& TheCuda();

}  // namespace fake_nccl
