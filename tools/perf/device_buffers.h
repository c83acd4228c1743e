// Buffers in device memory, with copies on the host that the loop fills and checks.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "tools/perf/measure.h"

namespace entrain::perf {

// Allocates on the device of this rank; ranks take the devices in turn. Sets `name` to the device's
// name.
absl::StatusOr<Buffers> AllocateOnDevice(int rank, int64_t bytes, std::string* name);

}  // namespace entrain::perf
