#include "tests/support/fake_cuda/memory.h"

#include <cstdio>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBegin = 256;  // offset in a mapping: CUDA's minimal alignment
constexpr size_t kDeviceBytes = size_t{16} << 30;
constexpr int kGarbage = 0xcd;
constexpr uint32_t kMagic = 0x43495046;

// The content of a handle's 64 bytes.
struct Handle {
  uint32_t magic;
  int32_t pid, fd, ordinal;
  uint64_t begin, inode, bytes;
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle));

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

uint64_t InodeOf(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

CUresult MemoryMap::Allocate(int ordinal, size_t bytes, CUdeviceptr* out, bool exportable) {
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > kDeviceBytes - total_) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  FakeMemory memory;
  memory.ordinal = ordinal;
  memory.exportable = exportable;
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

CUresult MemoryMap::Export(uintptr_t begin, CUipcMemHandle* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = memory_.find(begin);
  if (found == memory_.end() || found->second.origin != MemoryOrigin::kDevice ||
      !found->second.exportable) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FakeMemory& memory = found->second;
  const Handle handle = {kMagic,       getpid(),           memory.fd,   memory.ordinal,
                         memory.begin, InodeOf(memory.fd), memory.bytes};
  *out = {};
  std::memcpy(out, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult MemoryMap::Open(const CUipcMemHandle& raw, CUdeviceptr* out) {
  Handle handle;
  std::memcpy(&handle, &raw, sizeof(handle));
  if (handle.magic != kMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle.pid == getpid()) {
    return CUDA_ERROR_INVALID_CONTEXT;  // the driver's error for an own handle
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [begin, memory] : memory_) {
    if (memory.origin == MemoryOrigin::kOpened &&
        std::memcmp(&memory.handle, &raw, sizeof(raw)) == 0) {
      ++memory.opens;
      *out = begin;
      return CUDA_SUCCESS;
    }
  }
  // Older memory of the exporter at these addresses is still open here.
  for (const auto& [begin, memory] : memory_) {
    Handle other;
    std::memcpy(&other, &memory.handle, sizeof(other));
    if (memory.origin == MemoryOrigin::kOpened && other.pid == handle.pid &&
        other.begin < handle.begin + handle.bytes && handle.begin < other.begin + other.bytes) {
      return CUDA_ERROR_ALREADY_MAPPED;
    }
  }
  FakeMemory memory;
  memory.origin = MemoryOrigin::kOpened;
  memory.ordinal = handle.ordinal;
  memory.bytes = handle.bytes;
  memory.opens = 1;
  memory.handle = raw;
  const std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  memory.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.fd < 0 || InodeOf(memory.fd) != handle.inode || !Map(memory)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory_.emplace(memory.begin, memory);
  *out = memory.begin;
  return CUDA_SUCCESS;
}

CUresult MemoryMap::Close(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = memory_.find(begin);
  if (found == memory_.end() || found->second.origin != MemoryOrigin::kOpened) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second.opens == 0) {
    Unmap(found->second);
    memory_.erase(found);
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
