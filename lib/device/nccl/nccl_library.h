// NCCL as a library for whole collectives on device memory (lib/device/offload.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "lib/device/offload.h"

namespace entrain {

// Returns the same object at every call. The object is never destroyed. Loads libnccl.so.2, or the
// file in ENTRAIN_NCCL_LIBRARY. Returns UNAVAILABLE with the reason if there is no such library, or
// if it is too old. Any thread may call this function.
//
// All ranks must have the same version of NCCL. Each rank must have a device of its own. If two
// ranks share a device, joining fails with FAILED_PRECONDITION.
absl::StatusOr<OffloadLibrary*> OpenNccl();

namespace nccl {

// Loads NCCL from `file`, and ignores ENTRAIN_NCCL_LIBRARY. Returns a new object at every call.
absl::StatusOr<std::unique_ptr<OffloadLibrary>> LoadNccl(const std::string& file);

}  // namespace nccl
}  // namespace entrain
