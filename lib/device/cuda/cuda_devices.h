// The CUDA devices of this process (lib/device/device.h).
#pragma once

#include "absl/status/statusor.h"

#include "lib/device/device.h"

namespace entrain {

// The same object at every call, for ever. UNAVAILABLE with the reason when there is no driver or
// no device, or the library was built without CUDA. Thread safety: any thread. The driver does not
// outlive fork: in a child of a process that has called this, it and everything it gave fail with
// FAILED_PRECONDITION (and release nothing).
absl::StatusOr<Devices*> OpenCudaDevices();

}  // namespace entrain
