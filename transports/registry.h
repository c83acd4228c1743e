// The transports of this build, in order of preference. registry.cc is the only place that names a
// concrete one.
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
  // Null: every process has it. Otherwise why this one goes without, or OK; `named`: the user asked
  // for it by name. What is absent in this way is no failure, unless it was named.
  absl::Status (*absence)(bool named) = nullptr;

  absl::Status Absence(bool named) const { return absence ? absence(named) : absl::OkStatus(); }
};

// inproc, shm, ucx, tcp: best first. Of two processes, both use the first that both have and that
// reaches the other. All that this version knows, those included that this build or machine lacks.
absl::Span<const TransportFactory> TransportRegistry();

// "shm,tcp" to names, each known and named once; empty: all. The order of the text is ignored:
// preference is fixed.
absl::StatusOr<std::vector<std::string>> ParseTransports(absl::string_view text);

// One emulated link for all that a process sends (transports/fault). `rank`: its own.
class FaultLink;
std::shared_ptr<FaultLink> CreateFaultLink(const FaultPlan& plan, int rank, const Clock& clock);
// As factory.create, but what is sent goes over `link` first.
absl::StatusOr<std::unique_ptr<Transport>> CreateBehind(std::shared_ptr<FaultLink> link,
                                                        const TransportFactory& factory,
                                                        const TransportConfig& config,
                                                        Events* events);

}  // namespace entrain
