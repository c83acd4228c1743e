// The accelerators of this process, and the library that does whole collectives on them. Only
// registry.cc names concrete accelerators and libraries.
//
// Thread safety: any thread.
#pragma once

#include "absl/status/statusor.h"

#include "lib/device/device.h"
#include "lib/device/offload.h"

namespace entrain {

// Return the same objects at every call; they live for ever. Return UNAVAILABLE with the reason if
// there are no accelerators, or no library.
absl::StatusOr<Devices*> OpenDevices();
absl::StatusOr<OffloadLibrary*> OpenOffloadLibrary();

// Does the same as OpenDevices, but with the error of the C ABI: UNIMPLEMENTED if there are none.
absl::StatusOr<Devices*> ProcessDevices();

}  // namespace entrain
