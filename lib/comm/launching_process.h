// The process that started all ranks of this host: what they have in common where no variable says
// it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace entrain {

// "PID-START" of the nearest ancestor whose environment, as it was when it was started, lacks
// `rank_variable` or belongs to somebody else: shells and wrappers between the launcher and a rank
// have it. The same for all ranks that one process started, and for no others while they live
// (START: the kernel's time of its start). kFailedPrecondition: there is none, as in a container of
// the rank's own.
absl::StatusOr<std::string> LaunchingProcess(const std::string& rank_variable);

}  // namespace entrain
