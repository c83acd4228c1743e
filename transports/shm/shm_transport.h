// The transport between processes of one host. Each pair of processes shares a segment with two
// rings. Small messages are copied through the ring. The receiver reads large messages from the
// sender's memory. If such reads are forbidden, large messages are sent through the ring in pieces.
// transports/shm/README.md has a picture of the parts, and the rules.
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
  bool pull = true;  // false: never reads the peer's memory, as if that were forbidden
  CpuShare cpus = CpuShare::OfThisThread();
};
// Does the same as CreateShmTransport, with `options`. For tests and measurements.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportConfig& config,
                                                           Events* events, const Options& options);

}  // namespace shm
}  // namespace entrain
