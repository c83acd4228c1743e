// Any transport behind a link of a given rate and latency (fault_link.h), or cut after a while.
//
// Only what this process sends is held back, so the peers need not know of it and the wire is the
// same. Receives, loans, regions and control messages pass. Small messages are never sent at once
// (TrySend): they would have to wait.
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
