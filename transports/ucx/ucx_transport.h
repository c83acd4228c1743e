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
// Returns the reason why this process does not use ucx, or OK. One reason is that UCX cannot be
// loaded. The other is that there is no RDMA device and the user has not `named` ucx: tcp and shm
// are then faster.
absl::Status UcxAbsence(bool named);

}  // namespace entrain
