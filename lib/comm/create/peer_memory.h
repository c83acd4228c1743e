// The memory of this process that other processes of the host may read in place (entrain_mem_alloc,
// entrain_mem_register). The memory serves all communicators of the runtime. PeerMemory changes the
// runtime's list of regions. It keeps memory available while a call uses the memory.
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

  // Allocates memory that other processes of this host may read in place.
  absl::StatusOr<void*> Allocate(int64_t bytes, SealedMemory::Pages pages);
  // Frees memory from Allocate. The memory stays mapped while a call of a communicator of the
  // runtime uses it.
  absl::Status Free(void* memory);
  // Lets other processes of this host read the caller's memory in place. They can read only whole
  // pages of private memory. Returns the number of bytes in these pages.
  absl::StatusOr<int64_t> Register(Bytes memory);
  absl::Status Deregister(void* memory);

 private:
  // Removes the region that begins at `memory` from the list of regions, and returns the region. If
  // the memory is registered and a call uses it, returns an error that names the call. If the
  // memory was allocated and a call uses it, the memory stays mapped until the call is over.
  absl::StatusOr<std::shared_ptr<SharedRegion>> TakeBack(void* memory, bool registered);

  Engine& engine_;
  SharedRegions& regions_;
};

}  // namespace entrain
