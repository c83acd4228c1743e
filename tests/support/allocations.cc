#include "tests/support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

std::atomic<int64_t> live{0}, most{0};

// Memory that is aligned to more than a page, with the size that was asked for. malloc_usable_size
// includes addresses behind such memory that exist only because of the alignment.
struct Large {
  std::atomic<void*> memory{nullptr};
  int64_t bytes = 0;
};
Large large[1024];

Large* Find(void* memory) {
  for (Large& one : large) {
    if (one.memory.load() == memory) {
      return &one;
    }
  }
  return nullptr;
}

int64_t BytesOf(void* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % (2 << 20) == 0 && memory != nullptr) {
    if (const Large* const one = Find(memory); one != nullptr) {
      return one->bytes;
    }
  }
  return static_cast<int64_t>(malloc_usable_size(memory));
}

void NoteLarge(void* memory, size_t bytes) {
  static void* const kTaken = &large;
  for (Large& one : large) {
    void* free = nullptr;
    if (one.memory.compare_exchange_strong(free, kTaken)) {
      one.bytes = static_cast<int64_t>(bytes);
      one.memory.store(memory);
      return;
    }
  }
  std::abort();
}

void Count(void* memory) {
  const int64_t bytes = BytesOf(memory);
  const int64_t now = live.fetch_add(bytes) + bytes;
  for (int64_t seen = most.load(); seen < now && !most.compare_exchange_weak(seen, now);) {
  }
}

void Discount(void* memory) {
  live.fetch_sub(BytesOf(memory));
  if (reinterpret_cast<uintptr_t>(memory) % (2 << 20) == 0 && memory != nullptr) {
    if (Large* const one = Find(memory); one != nullptr) {
      one->memory.store(nullptr);
    }
  }
}

}  // namespace

// The linker redirects the library's calls of these functions here (--wrap). Calls inside the C
// library are not counted.
extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void** memory, size_t alignment, size_t bytes);
void* __real_malloc(size_t bytes);
void* __real_calloc(size_t count, size_t bytes);
void __real_free(void* memory);

void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  void* const memory = __real_aligned_alloc(alignment, bytes);
  Count(memory);
  return memory;
}
int __wrap_posix_memalign(void** memory, size_t alignment, size_t bytes) {
  const int failed = __real_posix_memalign(memory, alignment, bytes);
  if (failed == 0) {
    if (alignment > 4096) {
      NoteLarge(*memory, bytes);
    }
    Count(*memory);
  }
  return failed;
}
void* __wrap_malloc(size_t bytes) {
  void* const memory = __real_malloc(bytes);
  Count(memory);
  return memory;
}
void* __wrap_calloc(size_t count, size_t bytes) {
  void* const memory = __real_calloc(count, bytes);
  Count(memory);
  return memory;
}
void __wrap_free(void* memory) {
  Discount(memory);
  __real_free(memory);
}
}

void* operator new(size_t bytes) {
  void* const memory = __wrap_malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  void* const memory = __wrap_aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  __wrap_free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  __wrap_free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  __wrap_free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  __wrap_free(memory);
}

namespace entrain {

int64_t AllocatedBytes() {
  return live.load();
}
int64_t MostAllocatedBytes() {
  return most.load();
}
void ForgetMost() {
  most.store(live.load());
}

}  // namespace entrain
