// Processes of one host: a pair shares a segment with two rings. Small messages are copied through
// the ring; large ones are read by the receiver straight from the sender's memory, or, where that
// is forbidden, sent through the ring in pieces. transports/shm/README.md has the picture and the
// figures.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "lib/base/cpu_share.h"
#include "transports/shm/tx_queue.h"
#include "transports/transport.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<Transport>> CreateShmTransport(const TransportConfig& config,
                                                              Events* events);

namespace shm {

struct Options {
  Limits limits;
  bool pull = true;  // false: as where reading the peer's memory is forbidden
  CpuShare cpus = CpuShare::OfThisThread();
};
// For tests, and for measuring.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportConfig& config,
                                                           Events* events, const Options& options);

}  // namespace shm
}  // namespace entrain
