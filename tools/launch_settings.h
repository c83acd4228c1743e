// The ENTRAIN_* variables that a launcher hands to its ranks, checked once before there are any:
// otherwise every rank would say the same.
#pragma once

#include "absl/status/status.h"

namespace entrain {

// Refuses names that do not exist and values that no rank on this machine could take; the error
// names the variable and its value. Applies ENTRAIN_LOG to this process.
absl::Status CheckLaunchSettings();

}  // namespace entrain
