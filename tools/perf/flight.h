// entrain-perf --flight and --flight-of: pages of flight dumps, and the dump of a running process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace entrain::perf {

// Prints a page about these flight dumps. `json` is a file that gets the same contents as JSON;
// empty: none. Returns the exit code.
int PrintFlights(const std::vector<std::string>& files, const std::string& json);
// Prints the dump of a process of this user on this host. Returns the exit code.
int PrintFlightOf(int64_t pid);

}  // namespace entrain::perf
