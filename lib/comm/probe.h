// Measuring links when a communicator is made, for ENTRAIN_TUNING=probe: ranks play ping-pong in pairs,
// all pairs at once, and take the worst of what all have seen.
#pragma once

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/comm/cost_model.h"

namespace entrain {

// Collective; blocks. `from` with measured latencies and rates of its links, the same on all ranks. A
// link that no pair has keeps its figures.
absl::StatusOr<CostModel> ProbeLinks(Communicator& comm, const CostModel& from, const Paths& paths,
                                     const CallOptions& options);

}  // namespace entrain
