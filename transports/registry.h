// The transports of this build, in order of preference. Only registry.cc names concrete transports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "transports/fault_plan.h"
#include "transports/transport.h"

namespace entrain {

struct TransportFactory {
  const char* name;
  absl::StatusOr<std::unique_ptr<Transport>> (*create)(const TransportConfig& config,
                                                       Events* events);
  // If null, every process has the transport. Otherwise returns OK, or the reason why this process
  // does not have the transport. `named`: the user asked for the transport by name. Only in this
  // case is its absence an error.
  absl::Status (*absence)(bool named) = nullptr;

  absl::Status Absence(bool named) const { return absence ? absence(named) : absl::OkStatus(); }
};

// Returns inproc, shm, ucx and tcp, in order of preference. The list has all transports of this
// version, even those that this build or machine lacks. Two processes use the first transport that
// both have and over which they reach each other.
absl::Span<const TransportFactory> TransportRegistry();

// Parses a text like "shm,tcp". Returns a list of names. Each name must be known, and must appear
// only once. An empty text means all transports. The order in the text has no effect, because the
// order of preference is fixed.
absl::StatusOr<std::vector<std::string>> ParseTransports(absl::string_view text);

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
