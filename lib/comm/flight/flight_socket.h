// The name of the local socket through which a process sends its flight dump to processes of the
// same user.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace entrain {

// Returns the name of the socket of the process `pid`. The process sends one dump (docs/flight.md)
// over each connection and then closes the connection.
inline std::string FlightSocketName(int64_t pid) {
  return absl::StrCat("entrain-flight-", pid);
}

}  // namespace entrain
