// Wraps any transport in a link of a given rate and latency (fault_link.h), or cuts it after a
// given time.
//
// Only messages that this process sends are delayed, so the peers need not know about it and the
// wire format does not change. Receives, loans, regions and control messages pass unchanged. The
// fast path TrySend always refuses, since its messages would have to wait.
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
