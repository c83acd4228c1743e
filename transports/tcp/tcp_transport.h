// Processes reached over tcp. One listening port a process; of two processes, the one with the
// smaller PeerId dials. Between hosts large payloads may go by several connections at once. The wire
// format is in frame.h; README.md here has the whole story.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportConfig& config,
                                                              Events* events);

// By how many connections large payloads go to each peer: 1 to 16; of 1, no further ones are made.
// Empty: 0, as many as are measured to pay, on one host none.
absl::StatusOr<int> ParseTcpStreams(absl::string_view text);

}  // namespace entrain
