// By which of its transports UCX may connect processes: UCX_TLS, as this library takes it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain::ucx {

struct Ways {
  std::string tls;  // for UCX_TLS
  bool tcp =
      false;  // UCX listens on a TCP port, where it believes whatever comes: README.md, "Strangers"
  bool sm = false;  // UCX's shared memory
};

// What the environment's UCX_TLS leaves; all but shared memory where it is not set. tcp only where it is named: not by
// "all", and not by a list of what is left out.
Ways WaysOf(const std::optional<std::string>& asked);

// Whether `tls` leaves one of these transports.
bool Allows(absl::string_view tls, absl::string_view transports);

// The error where there is no way to another process.
absl::Status NoWay();

}  // namespace entrain::ucx
