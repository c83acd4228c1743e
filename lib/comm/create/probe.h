// Measures the links of a new communicator, for ENTRAIN_TUNING=probe. The ranks form pairs. All
// pairs exchange ping-pong messages at the same time. The result is the worst value of all pairs.
#pragma once

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/comm/plan/cost_model.h"

namespace entrain {

// Collective; blocks. Returns a copy of `from` with the measured latencies and rates, equal on all
// ranks. If no pair uses a kind of link (inside a host, across hosts), the values of this kind do
// not change.
absl::StatusOr<CostModel> ProbeLinks(Communicator& comm, const CostModel& from, const Paths& paths,
                                     const CallOptions& options);

}  // namespace entrain
