// Measures the links of a new communicator, for ENTRAIN_TUNING=probe. The ranks form pairs. All
// pairs exchange ping-pong messages at the same time. The worst values of all pairs count.
#pragma once

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/comm/cost_model.h"

namespace entrain {

// Collective; blocks. Returns a copy of `from` with the measured latencies and rates, equal on all
// ranks. A kind of link (inside a host, across hosts) that no pair uses keeps its figures.
absl::StatusOr<CostModel> ProbeLinks(Communicator& comm, const CostModel& from, const Paths& paths,
                                     const CallOptions& options);

}  // namespace entrain
