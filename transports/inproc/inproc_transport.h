// The transport between ranks that are threads of one process. Messages up to 1 KiB are copied into
// the receiver's inbox while there is credit. All other messages are sent by RTS. The receiver
// copies each of them once, in pieces, from the sender's buffer into its own buffer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateInprocTransport(const TransportConfig& config,
                                                                 Events* events);

}  // namespace entrain
