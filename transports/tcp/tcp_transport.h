// The transport between processes over tcp. Each process has one listening port. The process with
// the smaller PeerId dials the other process. Between hosts, large payloads may use several
// connections at the same time. frame.h has the wire format; README.md explains the design.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportConfig& config,
                                                              Events* events);

// Parses the number of connections to each peer for large payloads: 1 to 16. With 1, there are no
// streams. Returns 0 for an empty text. The number is then chosen by measurement between hosts, and
// is 1 between processes of one host.
absl::StatusOr<int> ParseTcpStreams(absl::string_view text);

}  // namespace entrain
