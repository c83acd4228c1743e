// Finds the process that started all ranks of this host (the launcher). This works even if no
// environment variable tells which ranks belong together.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace entrain {

// Returns "PID-START" of the launcher. START is the time at which the launcher's process started.
// The launcher is the nearest ancestor whose initial environment does not have `rank_variable`, or
// cannot be read because another user owns the process. Shells and wrappers between the launcher
// and a rank have the variable.
//
// All ranks of one launcher get the same text. If two launchers run at the same time, their ranks
// get different texts. Returns kFailedPrecondition if there is no such ancestor, for example
// because each rank has its own container.
absl::StatusOr<std::string> LaunchingProcess(const std::string& rank_variable);

}  // namespace entrain
