// The transports of UCX that may connect processes: UCX_TLS, and how this library interprets it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

struct Ways {
  std::string tls;   // for UCX_TLS
  bool tcp = false;  // UCX listens on a TCP port, without authentication: README.md, "Strangers"
  bool sm = false;   // UCX's shared memory
};

// Returns the ways that the environment's UCX_TLS allows; if it is not set, all but shared memory.
// tcp is allowed only if it is named, not by "all" and not by a list of exclusions.
Ways WaysOf(const std::optional<std::string>& asked);

// Returns true if `tls` allows one of these transports.
bool Allows(absl::string_view tls, absl::string_view transports);

// Returns the error for a process that has no way to another one.
absl::Status NoWay();

}  // namespace entrain::ucx
