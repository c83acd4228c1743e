#include "lib/memory/shared_regions.h"

#include <cerrno>
#include <utility>

#include <unistd.h>

#include "absl/strings/str_format.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

uintptr_t Key(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// Returns true if the error means that the system forbids shared memory. Any other error means that
// memory is short.
bool Forbids(int error) {
  return error == EPERM || error == EACCES || error == ENOSYS;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SharedRegion>> SharedRegions::Allocate(
    int64_t bytes, SealedMemory::Pages pages) {
  auto region = std::make_shared<SharedRegion>();
  ENTRAIN_ASSIGN_OR_RETURN(region->memory, SealedMemory::Create(bytes, pages));
  region->whole = ConstBytes(region->memory.data(), static_cast<size_t>(region->memory.size()));
  absl::MutexLock lock(&mutex_);
  region->id = next_id_++;
  regions_[Key(region->whole.data())] = region;
  Count();
  return region;
}

// Enters the region into the list before it replaces memory. So if two threads register overlapping
// ranges, one of them gets an error.
absl::StatusOr<std::shared_ptr<const SharedRegion>> SharedRegions::Register(Bytes bytes) {
  auto region = std::make_shared<SharedRegion>();
  region->whole = bytes;
  region->registered = true;
  const uintptr_t begin = Key(bytes.data()), end = begin + bytes.size();
  {
    absl::MutexLock lock(&mutex_);
    const auto after = regions_.lower_bound(end);
    if (after != regions_.begin()) {
      const ConstBytes before = std::prev(after)->second->whole;
      if (Key(before.data()) + before.size() > begin) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the %d bytes from %p on are allocated or registered already",
                            before.size(), static_cast<const void*>(before.data())));
      }
    }
    region->id = next_id_++;
    regions_[begin] = region;
    Count();
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  std::byte* const pages = bytes.data() + (first - begin);
  const auto size = static_cast<int64_t>(last - first);
  if (last <= first || !SealedMemory::IsPrivate(pages, size)) {
    return region;
  }
  absl::StatusOr<SealedMemory> memory = SealedMemory::Replace(pages, size);
  absl::MutexLock lock(&mutex_);
  if (!memory.ok() && Forbids(BlameOf(memory.status()).sys_errno)) {
    ENTRAIN_LOG(kInfo, "memory: registered memory stays where it is: ",
                absl::string_view(memory.status().message()));
    return region;
  }
  if (!memory.ok()) {
    regions_.erase(begin);
    Count();
    return memory.status();
  }
  region->memory = *std::move(memory);
  return region;
}

// A relaxed load is sufficient. The count was increased before any thread could know the region's
// address.
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
  return region->memory.data() != nullptr && region->Contains(bytes) ? region : nullptr;
}

std::shared_ptr<const SharedRegion> SharedRegions::At(const void* begin) const {
  absl::MutexLock lock(&mutex_);
  const auto found = regions_.find(Key(begin));
  return found == regions_.end() ? nullptr : found->second;
}

std::shared_ptr<SharedRegion> SharedRegions::Remove(const SharedRegion& region) {
  absl::MutexLock lock(&mutex_);
  const auto node = regions_.extract(Key(region.whole.data()));
  Count();
  return node.empty() ? nullptr : node.mapped();
}

}  // namespace entrain
