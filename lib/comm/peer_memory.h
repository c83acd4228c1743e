// The memory of this process that the other processes of its host may read in place
// (entrain_mem_alloc, entrain_mem_register). The memory serves all communicators of the runtime.
// PeerMemory changes the runtime's list of regions, and sees to it that no call loses memory that it
// uses.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/engine/engine.h"
#include "lib/memory/sealed_memory.h"
#include "lib/memory/shared_regions.h"

namespace entrain {

class PeerMemory {
 public:
  // Both arguments must outlive this object.
  PeerMemory(Engine& engine, SharedRegions& regions) : engine_(engine), regions_(regions) {}

  // Allocates memory that the other processes of this host may read in place.
  absl::StatusOr<void*> Allocate(int64_t bytes, SealedMemory::Pages pages);
  // Frees memory of Allocate. It stays mapped while a call of any communicator of the runtime uses
  // it.
  absl::Status Free(void* memory);
  // Lets the other processes of this host read memory of the caller in place. Only whole pages of
  // private memory can be read in this way. Returns the number of these bytes.
  absl::StatusOr<int64_t> Register(Bytes memory);
  absl::Status Deregister(void* memory);

 private:
  // Takes back the region that begins at `memory`. If a call uses registered memory, does not take
  // it back, and returns an error that names the call. If a call uses allocated memory, it stays
  // mapped until the call is over.
  absl::StatusOr<std::shared_ptr<SharedRegion>> TakeBack(void* memory, bool registered);

  Engine& engine_;
  SharedRegions& regions_;
};

}  // namespace entrain
