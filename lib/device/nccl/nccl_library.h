// NCCL as a library for whole collectives on device memory (lib/device/offload.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "lib/device/offload.h"

namespace entrain {

// Returns the same object at every call; it lives for ever. Loads libnccl.so.2, or the file in
// ENTRAIN_NCCL_LIBRARY. Returns UNAVAILABLE with the reason if there is no such library or it is
// too old. Any thread may call it.
//
// All ranks must have the same version, and each rank a device of its own. If two ranks share a
// device, joining fails with FAILED_PRECONDITION.
absl::StatusOr<OffloadLibrary*> OpenNccl();

namespace nccl {

// Like OpenNccl, but without the environment: loads a library of its own from the file.
absl::StatusOr<std::unique_ptr<OffloadLibrary>> LoadNccl(const std::string& file);

}  // namespace nccl
}  // namespace entrain
