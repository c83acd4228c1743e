// The listening socket of a process. It has one port. If the user gave a range (ENTRAIN_PORTS), the
// port is from this range.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/socket.h"

namespace entrain {

struct PortRange {
  uint16_t low = 0, high = 0;  // inclusive; 0-0: the kernel chooses
};
// Parses "LOW-HIGH" or "PORT", from 1 to 65535; empty: the kernel chooses.
absl::StatusOr<PortRange> ParsePorts(absl::string_view text);

struct Listener {
  Fd fd;
  Address address;  // with the real port
};
// Binds `host` (its port is ignored) to the first free port of the range. If no port is free,
// returns kFailedPrecondition, with the address and the range.
absl::StatusOr<Listener> OpenListener(const Address& host, PortRange ports);

// Returns the number of strangers that a listener may hold. A stranger is a connection whose other
// end has not yet proved that it is a peer. The number is an eighth of the descriptors that this
// process may have (RLIMIT_NOFILE), but at least 1 and at most `most`.
size_t PlacesForStrangers(size_t most);

}  // namespace entrain
