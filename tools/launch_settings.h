// Checks the ENTRAIN_* variables that a launcher passes to its ranks, once before the ranks start.
// Otherwise every rank would print the same error.
#pragma once

#include "absl/status/status.h"

namespace entrain {

// Refuses unknown names, and values that no rank on this machine could use. An error names the
// variable and its value. Applies ENTRAIN_LOG to this process.
absl::Status CheckLaunchSettings();

}  // namespace entrain
