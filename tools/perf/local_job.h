// entrain-perf -n: runs ranks on this machine, as processes or threads, and ends all of them.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace entrain::perf {

// Runs the command `arguments` (this program's own command line) on options.local_ranks ranks, once
// for each transport. Returns the exit code. A line that several ranks print is printed once.
int RunLocalJobs(const Options& options, const std::vector<std::string>& arguments);

}  // namespace entrain::perf
