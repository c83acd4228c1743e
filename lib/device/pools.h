// Pools of device memory and of page-locked memory. A pool frees nothing before its destruction,
// because freeing such memory waits for all streams of the device, and some of these streams wait
// for calls. Allocating may wait too, so a call takes its memory when it is started.
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
  // The size of a new block.
  enum class Sizes {
    kPowersOfTwo,  // at least 4096 bytes: for requests of many sizes
    kExact,
  };
  // `kind` is kDevice or kHostPinned.
  BlockPool(Device& device, MemoryKind kind, Sizes sizes = Sizes::kPowersOfTwo)
      : device_(device), kind_(kind), sizes_(sizes) {}
  // Frees all blocks, also those that were not given back.
  ~BlockPool();
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    bool reserved = false;
    int64_t size() const { return bytes; }
  };
  // Takes a block of at least `bytes` bytes. Unless the block is reserved, it has at most about
  // four times this size. Returns null for 0 bytes.
  absl::StatusOr<Block> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(Block block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reserves the idle blocks: from now on they serve smaller requests of any size.
  void ReserveIdle() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Device& device_;
  const MemoryKind kind_;
  const Sizes sizes_;
  absl::Mutex mutex_;
  std::vector<std::byte*> memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<Block> idle_ ABSL_GUARDED_BY(mutex_);
};

// Words in page-locked memory for which streams may wait. A stream that has waited for a word may
// still read the word after it was given back. So the value of a word only grows.
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
