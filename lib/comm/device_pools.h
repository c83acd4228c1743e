// Memory that calls on device memory borrow. All of it is kept until the pool goes: whoever frees such memory waits for
// all streams of the device, and some wait for calls; whoever allocates it may have to, so calls take what they need
// where they are started.
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
  // Of kDevice or kHostPinned.
  BlockPool(Device& device, MemoryKind kind) : device_(device), kind_(kind) {}
  ~BlockPool();
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    bool reserved = false;
  };
  // At least so many bytes; of 0: null.
  absl::StatusOr<Block> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(Block block) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is idle now serves any smaller request from now on, however small.
  void ReserveIdle() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Device& device_;
  const MemoryKind kind_;
  absl::Mutex mutex_;
  std::vector<Block> idle_ ABSL_GUARDED_BY(mutex_);
};

// Words in page-locked memory that streams may wait for. A word's last waiter may still look at it when it is given back,
// so it only grows.
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
