#include "lib/comm/device_pools.h"

#include <cstring>

#include "lib/base/status.h"

namespace entrain {

BlockPool::~BlockPool() {
  for (const Block& block : idle_) {
    if (kind_ == MemoryKind::kDevice) {
      device_.Free(block.data);
    } else {
      device_.FreePinned(block.data);
    }
  }
}

absl::StatusOr<BlockPool::Block> BlockPool::Take(int64_t bytes) {
  if (bytes == 0) {
    return Block();
  }
  int64_t rounded = 4096;
  while (rounded < bytes) {
    rounded *= 2;
  }
  {
    absl::MutexLock lock(&mutex_);
    auto best = idle_.end();
    for (auto block = idle_.begin(); block != idle_.end(); ++block) {
      // Of much larger ones little would be left for who needs them, unless there are enough.
      const bool fits = block->bytes >= bytes && (block->bytes <= 4 * rounded || block->reserved);
      if (fits && (best == idle_.end() || block->bytes < best->bytes)) {
        best = block;
      }
    }
    if (best != idle_.end()) {
      const Block taken = *best;
      idle_.erase(best);
      return taken;
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const memory, kind_ == MemoryKind::kDevice
                                                   ? device_.Allocate(rounded)
                                                   : device_.AllocatePinned(rounded));
  return Block{static_cast<std::byte*>(memory), rounded};
}

void BlockPool::Give(Block block) {
  if (block.data != nullptr) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(block);
  }
}

void BlockPool::ReserveIdle() {
  absl::MutexLock lock(&mutex_);
  for (Block& block : idle_) {
    block.reserved = true;
  }
}

WordPool::~WordPool() {
  for (void* const memory : memory_) {
    device_.FreePinned(memory);
  }
}

absl::StatusOr<uint32_t*> WordPool::Take() {
  constexpr int64_t kBytes = 4096;
  constexpr size_t kApart = 64 / sizeof(uint32_t);
  absl::MutexLock lock(&mutex_);
  if (idle_.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.AllocatePinned(kBytes));
    std::memset(memory, 0, kBytes);
    memory_.push_back(memory);
    for (size_t i = 0; i < kBytes / sizeof(uint32_t); i += kApart) {
      idle_.push_back(static_cast<uint32_t*>(memory) + i);
    }
  }
  uint32_t* const word = idle_.back();
  idle_.pop_back();
  return word;
}

void WordPool::Give(uint32_t* word) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(word);
}

}  // namespace entrain
