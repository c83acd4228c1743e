#include "lib/memory/shared_regions.h"

#include <utility>

#include "lib/base/status.h"

namespace entrain {
namespace {

uintptr_t Key(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SharedRegion>> SharedRegions::Allocate(
    int64_t bytes, SealedMemory::Pages pages) {
  auto region = std::make_shared<SharedRegion>();
  ENTRAIN_ASSIGN_OR_RETURN(region->memory, SealedMemory::Create(bytes, pages));
  absl::MutexLock lock(&mutex_);
  region->id = next_id_++;
  regions_[Key(region->memory.data())] = region;
  count_.store(regions_.size(), std::memory_order_relaxed);
  return region;
}

// The count is relaxed: whoever may know an address of a region has been told of it after it was
// counted.
std::shared_ptr<const SharedRegion> SharedRegions::Find(ConstBytes bytes) const {
  if (count_.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  absl::MutexLock lock(&mutex_);
  auto after = regions_.upper_bound(Key(bytes.data()));
  if (after == regions_.begin()) {
    return nullptr;
  }
  const auto& region = std::prev(after)->second;
  return region->Contains(bytes) ? region : nullptr;
}

std::shared_ptr<const SharedRegion> SharedRegions::At(const void* begin) const {
  absl::MutexLock lock(&mutex_);
  const auto found = regions_.find(Key(begin));
  return found == regions_.end() ? nullptr : found->second;
}

void SharedRegions::Remove(const SharedRegion& region) {
  absl::MutexLock lock(&mutex_);
  regions_.erase(Key(region.memory.data()));
  count_.store(regions_.size(), std::memory_order_relaxed);
}

}  // namespace entrain
