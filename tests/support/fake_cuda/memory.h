// Memory of the fake devices. A program gets an address range that it cannot access, so host code
// that follows a device pointer crashes. The bytes are in a memfd that is mapped a second time, and
// only the "device" uses this mapping. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include <cuda.h>

namespace fake_cuda {

enum class MemoryOrigin { kDevice, kPinned };

struct FakeMemory {
  MemoryOrigin origin = MemoryOrigin::kDevice;
  uintptr_t begin = 0;
  size_t bytes = 0;          // requested size
  char* seen = nullptr;      // the device's address; for pinned memory `begin`
  void* reserved = nullptr;  // the mapping that contains `begin`
  // Size of that mapping, and of the one that contains `seen`.
  size_t mapped = 0;
  int fd = -1;
  int ordinal = 0;
};

class MemoryMap {
 public:
  CUresult Allocate(int ordinal, size_t bytes, CUdeviceptr* out);
  CUresult AllocatePinned(int ordinal, size_t bytes, void** out);
  CUresult Free(uintptr_t begin, MemoryOrigin origin);

  // Finds the allocation that contains all of these bytes.
  bool Find(uintptr_t address, size_t bytes, FakeMemory* out);
  int Live(MemoryOrigin origin);
  // Returns the device's address of these bytes, or null if there is none.
  char* Seen(uintptr_t address, size_t bytes);

 private:
  std::mutex mutex_;
  std::map<uintptr_t, FakeMemory> memory_;  // by begin
  size_t total_ = 0;
};

MemoryMap& Memory();

}  // namespace fake_cuda
