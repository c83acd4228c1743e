// Wraps any transport: sends its messages over a link of a given rate and latency (fault_link.h),
// or ends its paths after a given time.
//
// Only messages that this process sends are delayed. So the peers need not know about the link, and
// the wire format does not change. Receives, loans, regions and control messages pass unchanged.
// TrySend always returns kNo, because its messages would have to wait.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "transports/fault/fault_link.h"
#include "transports/registry.h"
#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateFaultTransport(std::shared_ptr<FaultLink> link,
                                                                const TransportFactory& beneath,
                                                                const TransportConfig& config,
                                                                Events* events);

}  // namespace entrain
