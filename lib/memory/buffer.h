// Host memory with an owner, and a pool that reuses such memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/bytes.h"

namespace entrain {

// Owns aligned memory: to 2 MiB if its size is at least 2 MiB, to 4096 bytes if its size is at least
// 64 KiB, otherwise to 64 bytes. Memory of at least 2 MiB has huge pages where the system gives them
// to programs that ask (transparent huge pages, "madvise" or "always"). Move-only. Contents are not
// initialised.
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  // Returns RESOURCE_EXHAUSTED if there is not enough memory. The error text contains the size.
  // Never aborts.
  static absl::StatusOr<OwnedBuffer> Allocate(int64_t bytes);
  OwnedBuffer(OwnedBuffer&& other) noexcept;
  OwnedBuffer& operator=(OwnedBuffer&& other) noexcept;
  ~OwnedBuffer();
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  BufferView view() const { return {data_, size_, MemoryKind::kHost}; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// A pool of idle buffers. Take returns the smallest idle buffer that has at least `bytes` and at
// most about twice `bytes`, or a new buffer. The pool keeps at most `cap_bytes` of idle memory;
// Give frees a buffer that would exceed this. Thread safety: any thread.
class BufferPool {
 public:
  explicit BufferPool(int64_t cap_bytes) : cap_bytes_(cap_bytes) {}
  absl::StatusOr<OwnedBuffer> Take(int64_t bytes);
  void Give(OwnedBuffer buffer);
  // Frees the idle buffers.
  void Clear();
  int64_t idle_bytes() const;

 private:
  const int64_t cap_bytes_;
  mutable absl::Mutex mutex_;
  std::vector<OwnedBuffer> idle_ ABSL_GUARDED_BY(mutex_);
  int64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace entrain
