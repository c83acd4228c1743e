// Finds flags that are valid, but have no effect together with the method and the other flags.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/flag_checks.h"
#include "examples/trainer/flags.h"

namespace trainer {

// Returns one line for each given flag without an effect. A line names the flag and the reason, and
// says what to do. CheckFlags refuses flags that contradict each other, or whose values would be
// lost. The flags found here do no harm, so the run goes on.
std::vector<std::string> WarningsOf(const Options& options, const FlagGroups& groups);

}  // namespace trainer
