// entrain-perf -n: ranks on this machine, as processes or threads, and nothing left of them.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace entrain::perf {

// Runs the command `arguments` (this program's own, argv[0] first) on options.local_ranks ranks,
// one transport after the other; the exit code. Lines that several ranks print are printed once.
int RunLocalJobs(const Options& options, const std::vector<std::string>& arguments);

}  // namespace entrain::perf
