#include "lib/device/pools.h"

#include <cstring>

#include "lib/base/status.h"
#include "lib/memory/best_fit.h"

namespace entrain {

BlockPool::~BlockPool() {
  absl::MutexLock lock(&mutex_);
  for (std::byte* const memory : memory_) {
    if (kind_ == MemoryKind::kDevice) {
      device_.Free(memory);
    } else {
      device_.FreePinned(memory);
    }
  }
}

absl::StatusOr<BlockPool::Block> BlockPool::Take(int64_t bytes) {
  if (bytes == 0) {
    return Block();
  }
  int64_t size = 4096;
  while (size < bytes) {
    size *= 2;
  }
  {
    absl::MutexLock lock(&mutex_);
    // A block that is much larger stays in the pool, for a larger request.
    const auto idle = TakeBestFit(&idle_, [&](const Block& block) {
      return block.bytes >= bytes && block.bytes / 4 <= size;
    });
    if (idle.has_value()) {
      return *idle;
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const memory, kind_ == MemoryKind::kDevice
                                                   ? device_.Allocate(size)
                                                   : device_.AllocatePinned(size));
  absl::MutexLock lock(&mutex_);
  memory_.push_back(static_cast<std::byte*>(memory));
  return Block{memory_.back(), size};
}

void BlockPool::Give(Block block) {
  if (block.data != nullptr) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(block);
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
