// The transports of this build, in order of preference. Only registry.cc names concrete transports.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "transports/settings.h"
#include "transports/transport.h"

namespace entrain {

// Returns inproc, shm, ucx and tcp, in order of preference. The list has all transports of this
// version, even those that this build or machine lacks. Two processes use the first transport that
// both have and over which they reach each other.
absl::Span<const TransportFactory> TransportRegistry();

// Creates an emulated link, which carries all messages that a process sends (transports/fault).
// `rank`: the rank of this process.
class FaultLink;
std::shared_ptr<FaultLink> CreateFaultLink(const FaultPlan& plan, int rank, const Clock& clock);
// Creates a transport as factory.create does. Messages that this transport sends go over `link`
// first.
absl::StatusOr<std::unique_ptr<Transport>> CreateBehind(std::shared_ptr<FaultLink> link,
                                                        const TransportFactory& factory,
                                                        const TransportConfig& config,
                                                        Events* events);

}  // namespace entrain
