// The accelerators of this process, and the library that does whole collectives on them. Only
// registry.cc names concrete accelerators and libraries.
//
// Thread safety: any thread.
#pragma once

#include "absl/status/statusor.h"

#include "lib/device/device.h"
#include "lib/device/offload.h"

namespace entrain {

// Each function returns the same object at every call. The object is never destroyed. If there is
// no accelerator or no library, the function returns UNAVAILABLE with the reason.
absl::StatusOr<Devices*> OpenDevices();
absl::StatusOr<OffloadLibrary*> OpenOffloadLibrary();

// As OpenDevices, but returns null unless this process already uses the driver. Does not initialise
// it, so that a process that only asks can still fork.
Devices* DevicesInUse();

// Returns the result of OpenDevices. If there is no accelerator, returns the error of the C ABI
// instead: UNIMPLEMENTED.
absl::StatusOr<Devices*> ProcessDevices();

}  // namespace entrain
