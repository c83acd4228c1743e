// Pools of device memory and of page-locked memory. A pool frees no memory before its destruction.
// Freeing such memory waits for all streams of the device, and a stream may wait for a call.
// Allocating may wait too. So a call must take all its memory when it is started.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/device.h"

namespace entrain {

class BlockPool {
 public:
  // `kind` is kDevice or kHostPinned.
  BlockPool(Device& device, MemoryKind kind) : device_(device), kind_(kind) {}
  // Frees all blocks, including blocks that were not given back.
  ~BlockPool();
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t size() const { return bytes; }
  };
  // Takes a block of at least `bytes` bytes. The size of a new block is a power of two, at least
  // 4096 bytes. An idle block is used if it has at most four times this size. Returns null for 0
  // bytes.
  absl::StatusOr<Block> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(Block block) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Device& device_;
  const MemoryKind kind_;
  absl::Mutex mutex_;
  std::vector<std::byte*> memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<Block> idle_ ABSL_GUARDED_BY(mutex_);
};

// Words in page-locked memory, for which streams may wait (Device::AwaitWord). A stream may still
// read a word after the word was given back. So a user must never set a word to a lower value.
class WordPool {
 public:
  explicit WordPool(Device& device) : device_(device) {}
  ~WordPool();
  absl::StatusOr<uint32_t*> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(uint32_t* word) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Device& device_;
  absl::Mutex mutex_;
  std::vector<uint32_t*> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
