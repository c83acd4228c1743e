// The CUDA devices of this process (lib/device/device.h).
#pragma once

#include "absl/status/statusor.h"

#include "lib/device/device.h"

namespace entrain {

// Returns the same object at every call. The object is never destroyed. Returns UNAVAILABLE with
// the reason if there is no driver or no device, or if the library was built without CUDA. Any
// thread may call this function. The driver does not survive a fork. In a child of a process that
// has called this function, the function and all objects from it fail with FAILED_PRECONDITION, and
// release nothing.
absl::StatusOr<Devices*> OpenCudaDevices();
// Returns true if this process has loaded and initialised the driver.
bool CudaIsInUse();

}  // namespace entrain
