// Buffers in device memory, and what the loop looks at in their place.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "tools/perf/measure.h"

namespace entrain::perf {

// On the device of this rank: they are dealt out in turn. `name`: its name.
absl::StatusOr<Buffers> AllocateOnDevice(int rank, int64_t bytes, std::string* name);

}  // namespace entrain::perf
