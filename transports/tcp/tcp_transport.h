// Processes reached over tcp. One listening port a process; of two processes, the one with the
// smaller PeerId dials. The wire format is in frame.h; README.md here has the whole
// story.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportConfig& config,
                                                              Events* events);

}  // namespace entrain
