// Processes reached over UCX: RDMA, shared memory or TCP, as UCX chooses. README.md here has the
// whole story.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportConfig& config,
                                                              Events* events);
// Why this process does without it: UCX cannot be loaded, or, unless it was `named`, there is no
// RDMA device, without which tcp and shm do the same better.
absl::Status UcxAbsence(bool named);

}  // namespace entrain
