// The functions of the fake driver (tests/support/fake_cuda) that the fake NCCL needs. They are
// those of the copy that the program has loaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake_nccl {

struct Cuda {
  int (*cuLaunchHostFunc)(void* stream, void (*function)(void*), void* argument) = nullptr;
  int (*cuCtxGetDevice)(int* ordinal) = nullptr;
  int (*cuCtxGetCurrent)(void** context) = nullptr;
  int (*cuCtxPushCurrent_v2)(void* context) = nullptr;
  int (*cuCtxPopCurrent_v2)(void** context) = nullptr;
  int (*cuMemAlloc_v2)(uintptr_t* memory, size_t bytes) = nullptr;
  int (*cuMemFree_v2)(uintptr_t memory) = nullptr;
  void* (*Seen)(const void* memory, size_t bytes) = nullptr;
};

// All are null when there is no fake driver.
const Cuda& TheCuda();

}  // namespace fake_nccl
