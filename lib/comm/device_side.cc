#include "lib/comm/device_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/status.h"

namespace entrain {

PinnedPool::~PinnedPool() {
  for (const Block& block : idle_) {
    device_.FreePinned(block.data);
  }
  for (void* const memory : of_words_) {
    device_.FreePinned(memory);
  }
}

absl::StatusOr<PinnedPool::Block> PinnedPool::Take(int64_t bytes) {
  if (bytes == 0) {
    return Block();
  }
  {
    absl::MutexLock lock(&mutex_);
    auto best = idle_.end();
    for (auto block = idle_.begin(); block != idle_.end(); ++block) {
      if (block->bytes >= bytes && (best == idle_.end() || block->bytes < best->bytes)) {
        best = block;
      }
    }
    // Of much larger ones little would be left for who needs them.
    if (best != idle_.end() && best->bytes / 4 <= bytes) {
      const Block taken = *best;
      idle_.erase(best);
      return taken;
    }
  }
  int64_t rounded = 4096;
  while (rounded < bytes) {
    rounded *= 2;
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.AllocatePinned(rounded));
  return Block{static_cast<std::byte*>(memory), rounded};
}

void PinnedPool::Give(Block block) {
  if (block.data != nullptr) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(block);
  }
}

absl::StatusOr<uint32_t*> PinnedPool::TakeWord() {
  constexpr int64_t kBytes = 4096;
  constexpr size_t kApart = 64 / sizeof(uint32_t);
  absl::MutexLock lock(&mutex_);
  if (words_.empty()) {
    ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.AllocatePinned(kBytes));
    std::memset(memory, 0, kBytes);
    of_words_.push_back(memory);
    for (size_t i = 0; i < kBytes / sizeof(uint32_t); i += kApart) {
      words_.push_back(static_cast<uint32_t*>(memory) + i);
    }
  }
  uint32_t* const word = words_.back();
  words_.pop_back();
  return word;
}

void PinnedPool::GiveWord(uint32_t* word) {
  absl::MutexLock lock(&mutex_);
  words_.push_back(word);
}

absl::StatusOr<std::unique_ptr<DeviceSide>> DeviceSide::Open(Device& device,
                                                             const DeviceWays& ways) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(device, ways));
  for (StreamHandle& stream : side->streams_) {
    ENTRAIN_ASSIGN_OR_RETURN(stream, device.CreateStream());
  }
  // Before any stream waits for a call: enough for a meeting.
  ENTRAIN_RETURN_IF_ERROR(side->Scratch(4096).status());
  return side;
}

DeviceSide::~DeviceSide() {
  offload_.reset();
  for (const Opened& opened : opened_) {
    device_.Close(opened.memory);
  }
  for (void* const scratch : scratch_) {
    device_.Free(scratch);
  }
  for (const StreamHandle stream : streams_) {
    if (stream != nullptr) {
      device_.DestroyStream(stream);
    }
  }
}

void DeviceSide::Met(bool direct, std::vector<bool> here, std::unique_ptr<Offload> offload) {
  direct_ = direct;
  here_ = std::move(here);
  offload_ = std::move(offload);
  met_.store(true, std::memory_order_release);
}

absl::StatusOr<std::byte*> DeviceSide::Address(const DeviceExport& memory) {
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& one) {
    return one.memory.allocation == memory.allocation;
  });
  if (found != opened_.end()) {
    return found->base + memory.offset;
  }
  ENTRAIN_ASSIGN_OR_RETURN(void* const base, device_.Open(memory));
  opened_.push_back({memory, static_cast<std::byte*>(base)});
  return opened_.back().base + memory.offset;
}

absl::StatusOr<void*> DeviceSide::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    // All of them together are at most as large again as the last.
    bytes = std::max(bytes, 2 * scratch_bytes_);
    ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device_.Allocate(bytes));
    scratch_.push_back(memory);
    scratch_bytes_ = bytes;
  }
  return scratch_.back();
}

}  // namespace entrain
