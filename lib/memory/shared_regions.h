// The memory that a process has allocated for its peers to see (entrain_mem_alloc): found by the address of a buffer, so
// that a transport that passes descriptors can offer it to the process that a message goes to.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/bytes.h"
#include "lib/memory/sealed_memory.h"

namespace entrain {

// Immutable; lives as long as anybody holds it.
struct SharedRegion {
  uint64_t id = 0;  // never 0, never used again
  SealedMemory memory;

  bool Contains(ConstBytes bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory.data()),
               at = reinterpret_cast<uintptr_t>(bytes.data());
    const auto size = static_cast<uintptr_t>(memory.size());
    return at >= begin && at - begin <= size && bytes.size() <= size - (at - begin);
  }
};

// Thread safety: any thread.
class SharedRegions {
 public:
  // At least 1 byte; aligned to a page.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Allocate(int64_t bytes,
                                                               SealedMemory::Pages pages);
  // The region that all of these bytes lie in; null: none.
  std::shared_ptr<const SharedRegion> Find(ConstBytes bytes) const;
  // The region that begins there; null: none.
  std::shared_ptr<const SharedRegion> At(const void* begin) const;
  // It is found no more. Its memory goes with its last holder.
  void Remove(const SharedRegion& region);

 private:
  std::atomic<size_t> count_{0};  // so that who has none pays nothing
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uintptr_t, std::shared_ptr<const SharedRegion>> regions_
      ABSL_GUARDED_BY(mutex_);  // by where they begin
};

}  // namespace entrain
