// The memory that a process has allocated for its peers to see (entrain_mem_alloc), or has registered for that
// (entrain_mem_register): found by the address of a buffer, so that a transport that passes descriptors can offer it to the
// process that a message goes to.
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
  // Its first and last bytes lie outside of `memory` if what was registered does not begin and end with a page.
  ConstBytes whole;
  bool registered = false;
  SealedMemory memory;  // none: of what was registered, nothing can be mapped

  bool Contains(ConstBytes bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(whole.data()),
               at = reinterpret_cast<uintptr_t>(bytes.data());
    const auto size = static_cast<uintptr_t>(whole.size());
    return at >= begin && at - begin <= size && bytes.size() <= size - (at - begin);
  }
};

// Thread safety: any thread.
class SharedRegions {
 public:
  // At least 1 byte; aligned to a page.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Allocate(int64_t bytes,
                                                               SealedMemory::Pages pages);
  // Puts memory that peers can map in the place of the whole pages of this range, if they are private memory. Nobody may
  // write there meanwhile. INVALID_ARGUMENT: a part of it is in a region. After an error nothing has changed.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Register(Bytes bytes);
  // The region that all of these bytes lie in, and that peers can map; null: none.
  std::shared_ptr<const SharedRegion> Find(ConstBytes bytes) const;
  // The region that begins there; null: none.
  std::shared_ptr<const SharedRegion> At(const void* begin) const;
  // It is found no more. Its memory goes with its last holder.
  std::shared_ptr<SharedRegion> Remove(const SharedRegion& region);

 private:
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_.store(regions_.size(), std::memory_order_relaxed);
  }
  std::atomic<size_t> count_{0};  // so that who has none pays nothing
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uintptr_t, std::shared_ptr<SharedRegion>> regions_
      ABSL_GUARDED_BY(mutex_);  // by where they begin
};

}  // namespace entrain
