// NCCL as the library that whole collectives on device memory are given to (lib/device/offload.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "lib/device/offload.h"

namespace entrain {

// The same object at every call, for ever. From libnccl.so.2, or what ENTRAIN_NCCL_LIBRARY names.
// UNAVAILABLE with the reason: there is none, or it is too old. Thread safety: any thread.
//
// All ranks need the same version, and a device each: where two share one, joining ends
// FAILED_PRECONDITION.
absl::StatusOr<OffloadLibrary*> OpenNccl();

namespace nccl {

// OpenNccl without the environment: a library of its own from the file.
absl::StatusOr<std::unique_ptr<OffloadLibrary>> LoadNccl(const std::string& file);

}  // namespace nccl
}  // namespace entrain
