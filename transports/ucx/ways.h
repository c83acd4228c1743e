// The transports of UCX that may connect processes. The user chooses them by the variable UCX_TLS.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

struct Ways {
  std::string tls;   // value for UCX_TLS
  bool tcp = false;  // UCX listens on a TCP port, without authentication: README.md, "Strangers"
  bool sm = false;   // UCX's shared memory
};

// Returns the transports that UCX_TLS allows. `asked` is the value of UCX_TLS. If it is not set,
// all transports except shared memory and tcp are allowed. tcp is allowed only if the value names
// tcp. "all" or a list of exclusions does not allow tcp.
Ways WaysOf(const std::optional<std::string>& asked);

// Returns true if `tls` allows one of `transports`, a list with commas.
bool Allows(absl::string_view tls, absl::string_view transports);

// Returns the error for a process that may use no transport of UCX to other processes.
absl::Status NoWay();

// Returns FAILED_PRECONDITION if `ways` have tcp and ENTRAIN_INSECURE is not 1: a stranger can end
// a process that listens on UCX's TCP port (README.md, "Strangers").
absl::Status CheckStrangers(const Ways& ways);

}  // namespace entrain::ucx
