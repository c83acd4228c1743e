// The accelerators of this process, and the library that does whole collectives on them. registry.cc is the only place that
// names a concrete one.
//
// Thread safety: any thread.
#pragma once

#include "absl/status/statusor.h"

#include "lib/device/device.h"
#include "lib/device/offload.h"

namespace entrain {

// The same objects at every call, for ever; UNAVAILABLE with the reason where there are none.
absl::StatusOr<Devices*> OpenDevices();
absl::StatusOr<OffloadLibrary*> OpenOffloadLibrary();

// OpenDevices in the words of the C ABI: UNIMPLEMENTED where there are none.
absl::StatusOr<Devices*> ProcessDevices();

}  // namespace entrain
