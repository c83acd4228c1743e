#include "tests/support/fake_cuda/memory.h"

#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

namespace fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBegin = 256;  // offset in a mapping: CUDA's minimal alignment
constexpr size_t kDeviceBytes = size_t{16} << 30;
constexpr int kGarbage = 0xcd;

// Maps both views of the file, each followed by an inaccessible page.
bool Map(FakeMemory& memory) {
  memory.mapped = (kBegin + memory.bytes + kPage - 1) / kPage * kPage;
  memory.reserved = mmap(nullptr, memory.mapped + kPage, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* const room = mmap(nullptr, memory.mapped + kPage, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory.reserved == MAP_FAILED || room == MAP_FAILED ||
      mmap(room, memory.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.fd, 0) ==
          MAP_FAILED) {
    return false;
  }
  memory.begin = reinterpret_cast<uintptr_t>(memory.reserved) + kBegin;
  memory.seen = static_cast<char*>(room) + kBegin;
  return true;
}

void Unmap(const FakeMemory& memory) {
  munmap(memory.reserved, memory.mapped + kPage);
  munmap(memory.seen - kBegin, memory.mapped + kPage);
  close(memory.fd);
}

}  // namespace

CUresult MemoryMap::Allocate(int ordinal, size_t bytes, CUdeviceptr* out) {
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > kDeviceBytes - total_) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  FakeMemory memory;
  memory.ordinal = ordinal;
  memory.bytes = bytes;
  memory.fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  const auto length = static_cast<off_t>((kBegin + bytes + kPage - 1) / kPage * kPage);
  if (memory.fd < 0 || ftruncate(memory.fd, length) != 0 || !Map(memory)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (bytes <= size_t{1} << 24) {
    std::memset(memory.seen, kGarbage, bytes);
  }
  total_ += bytes;
  memory_.emplace(memory.begin, memory);
  *out = memory.begin;
  return CUDA_SUCCESS;
}

CUresult MemoryMap::AllocatePinned(int ordinal, size_t bytes, void** out) {
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeMemory memory;
  memory.origin = MemoryOrigin::kPinned;
  memory.ordinal = ordinal;
  memory.bytes = bytes;
  memory.mapped = (bytes + kPage - 1) / kPage * kPage;
  memory.reserved =
      mmap(nullptr, memory.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory.reserved == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::memset(memory.reserved, kGarbage, bytes);
  memory.begin = reinterpret_cast<uintptr_t>(memory.reserved);
  memory.seen = static_cast<char*>(memory.reserved);
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.emplace(memory.begin, memory);
  *out = memory.reserved;
  return CUDA_SUCCESS;
}

CUresult MemoryMap::Free(uintptr_t begin, MemoryOrigin origin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = memory_.find(begin);
  if (found == memory_.end() || found->second.origin != origin) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FakeMemory memory = found->second;
  memory_.erase(found);
  if (origin == MemoryOrigin::kPinned) {
    munmap(memory.reserved, memory.mapped);
  } else {
    total_ -= memory.bytes;
    Unmap(memory);
  }
  return CUDA_SUCCESS;
}

bool MemoryMap::Find(uintptr_t address, size_t bytes, FakeMemory* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = memory_.upper_bound(address);
  if (found == memory_.begin()) {
    return false;
  }
  --found;
  const FakeMemory& memory = found->second;
  if (address - memory.begin + bytes > memory.bytes) {
    return false;
  }
  *out = memory;
  return true;
}

int MemoryMap::Live(MemoryOrigin origin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int live = 0;
  for (const auto& [begin, memory] : memory_) {
    live += memory.origin == origin ? 1 : 0;
  }
  return live;
}

char* MemoryMap::Seen(uintptr_t address, size_t bytes) {
  FakeMemory memory;
  return Find(address, bytes, &memory) ? memory.seen + (address - memory.begin) : nullptr;
}

MemoryMap& Memory() {
  static auto* const memory = new MemoryMap;
  return *memory;
}

}  // namespace fake_cuda
