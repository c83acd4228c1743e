// The kernels of the fake driver: those of lib/device/cuda, compiled for the host.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake_cuda {

struct FakeKernel {
  const char* name;
  size_t arg_bytes;
  // Replaces the pointers in the arguments by the device's addresses. Returns false if a pointer is
  // invalid.
  bool (*translate)(void* args);
  // Runs all threads of all blocks, one after the other.
  void (*run)(const void* args, int blocks);
};

// Returns the kernel of this name, as its module names it, or null if there is none.
const FakeKernel* FindKernel(const char* name);
int ThreadsOfABlock();

}  // namespace fake_cuda
