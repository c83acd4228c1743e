// The memory that a process shares with its peers: allocated by entrain_mem_alloc or registered by
// entrain_mem_register. A region is found by the address of a buffer in it. If the buffer of a
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

// Immutable after its creation. Shared ownership: destroyed with the last shared_ptr.
struct SharedRegion {
  uint64_t id = 0;  // not 0; never used again for another region
  // All bytes of the region. If a registered range does not begin and end at page boundaries, its
  // first and last bytes are not in `memory`.
  ConstBytes whole;
  bool registered = false;
  SealedMemory memory;  // empty: peers cannot map any part of the region

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
  // Allocates `bytes` bytes, at least 1, aligned to a page.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Allocate(int64_t bytes,
                                                               SealedMemory::Pages pages);
  // Registers the range as a region. If the whole pages of the range are private memory,
  // SealedMemory::Replace makes them memory that peers can map. If they are not, or if the system
  // forbids shared memory, peers cannot map the region.
  //
  // No thread may write to the range during the call. Returns INVALID_ARGUMENT if a part of the
  // range is already in a region. After an error, the range is not registered.
  absl::StatusOr<std::shared_ptr<const SharedRegion>> Register(Bytes bytes);
  // Returns the region that contains all these bytes. Returns null if there is none or if peers
  // cannot map it.
  std::shared_ptr<const SharedRegion> Find(ConstBytes bytes) const;
  // Returns the region whose first byte is at `begin`, or null.
  std::shared_ptr<const SharedRegion> At(const void* begin) const;
  // Removes the region from the list and returns it. Its memory exists until the last shared_ptr to
  // it is gone.
  std::shared_ptr<SharedRegion> Remove(const SharedRegion& region);

 private:
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_.store(regions_.size(), std::memory_order_relaxed);
  }
  std::atomic<size_t> count_{0};  // number of regions; lets Find skip the lock if there are none
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uintptr_t, std::shared_ptr<SharedRegion>> regions_
      ABSL_GUARDED_BY(mutex_);  // key: address of the first byte
};

}  // namespace entrain
