// Wraps a transport. The wrapper sends the transport's messages over a link of a given rate and
// latency (fault_link.h), or ends the transport's paths after a given time.
//
// The link delays only messages that this process sends. So the peers need not know about the link,
// and the wire format does not change. The wrapper passes receives, loans, regions and control
// messages through unchanged. TrySend always returns kNo, because a message would have to wait.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "transports/fault/fault_link.h"
#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateFaultTransport(std::shared_ptr<FaultLink> link,
                                                                const TransportFactory& beneath,
                                                                const TransportConfig& config,
                                                                Events* events);

}  // namespace entrain
