// Finds the process that started all ranks of this host. The ranks have this process in common even
// if no variable says so.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace entrain {

// Returns "PID-START" of the nearest ancestor whose initial environment lacks `rank_variable` or
// cannot be read because another user owns it. Shells and wrappers between the launcher and a rank
// do have the variable. All ranks that one process started get the same text. While they live,
// other processes get other texts. (START is the kernel's start time of the process.)
// kFailedPrecondition: there is no such ancestor, as in a container of the rank's own.
absl::StatusOr<std::string> LaunchingProcess(const std::string& rank_variable);

}  // namespace entrain
