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
// Returns OK, or the reason why this process does not use ucx. It does not use ucx if UCX cannot be
// loaded, or if no transport of UCX may be used. If no RDMA device is up, it uses ucx only if the
// user has `named` ucx, because tcp and shm are then faster.
absl::Status UcxAbsence(bool named);

}  // namespace entrain
