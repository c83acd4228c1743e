// The kernels that the fake driver has, compiled for the host: those of lib/device/cuda and those
// of examples/trainer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake_cuda {

struct FakeKernel {
  const char* name;
  size_t arg_bytes;
  // Replaces the pointers in the arguments by what the device sees; false: one points nowhere.
  bool (*translate)(void* args);
  // All threads of all blocks, one after the other.
  void (*run)(const void* args, int blocks);
};

// By its name in its module; null: none.
const FakeKernel* FindKernel(const char* name);
const FakeKernel* FindTrainerKernel(const char* name);
int ThreadsOfABlock();

}  // namespace fake_cuda
