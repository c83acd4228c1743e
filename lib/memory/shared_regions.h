// The memory that a process has allocated for its peers (entrain_mem_alloc) or registered for them
// (entrain_mem_register). A region is looked up by the address of a buffer. If the buffer of a
// message lies in a region, a transport that can pass descriptors offers the region to the
// receiving process.
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

// Immutable. Lives as long as it has a holder.
struct SharedRegion {
  uint64_t id = 0;  // never 0; no other region ever gets the same number
  // The bytes of the region. If a registered range does not begin and end at a page boundary, its
  // first and last bytes lie outside of `memory`.
  ConstBytes whole;
  bool registered = false;
  SealedMemory memory;  // empty: no part of the registered range can be mapped

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
  // Allocates at least 1 byte, aligned to a page.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Allocate(int64_t bytes,
                                                               SealedMemory::Pages pages);
  // Registers the range. If its whole pages are private memory, replaces them by memory that peers
  // can map (SealedMemory::Replace); otherwise, or if the system forbids shared memory, peers
  // cannot map the region. No thread may write to the range during the call. INVALID_ARGUMENT: a
  // part of the range is already in a region. After an error the range is not registered.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Register(Bytes bytes);
  // Returns the region that contains all of these bytes, if peers can map the region; otherwise
  // null.
  std::shared_ptr<const SharedRegion> Find(ConstBytes bytes) const;
  // Returns the region that begins at `begin`, or null.
  std::shared_ptr<const SharedRegion> At(const void* begin) const;
  // Removes the region from the list. The last holder of the region frees its memory.
  std::shared_ptr<SharedRegion> Remove(const SharedRegion& region);

 private:
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_.store(regions_.size(), std::memory_order_relaxed);
  }
  std::atomic<size_t> count_{0};  // lets Find return at once if there are no regions
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uintptr_t, std::shared_ptr<SharedRegion>> regions_
      ABSL_GUARDED_BY(mutex_);  // by first address
};

}  // namespace entrain
