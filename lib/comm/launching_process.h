// Finds the process that started all ranks of this host. Ranks can find this common process even if
// no environment variable tells them which ranks belong together.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace entrain {

// Returns "PID-START" of the launcher. START is the time at which the launcher's process started.
// The launcher is the nearest ancestor whose initial environment lacks `rank_variable`, or cannot
// be read because another user owns the process. Shells and wrappers between the launcher and a
// rank do have the variable.
//
// All ranks of one launcher get the same text. Ranks of launchers that live at the same time get
// different texts. Returns kFailedPrecondition if there is no such ancestor, for example because
// each rank has a container of its own.
absl::StatusOr<std::string> LaunchingProcess(const std::string& rank_variable);

}  // namespace entrain
