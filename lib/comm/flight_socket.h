// The name of the local socket at which a process gives its flight dump to processes of its user.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace entrain {

// A connection gets one dump (docs/flight.md) and is closed.
inline std::string FlightSocketName(int64_t pid) {
  return absl::StrCat("entrain-flight-", pid);
}

}  // namespace entrain
