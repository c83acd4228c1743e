// The transport between processes over UCX: RDMA, shared memory or TCP, as UCX chooses. README.md
// explains the design.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportConfig& config,
                                                              Events* events);
// Returns the reason why this process does not use ucx: UCX cannot be loaded; or there is no RDMA
// device and ucx was not `named`, because tcp and shm are then faster.
absl::Status UcxAbsence(bool named);

}  // namespace entrain
