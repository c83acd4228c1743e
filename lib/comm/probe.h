// Measures links when a communicator is made, for ENTRAIN_TUNING=probe. Ranks play ping-pong in
// pairs, all pairs at once, and take the worst values of all pairs.
#pragma once

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/comm/cost_model.h"

namespace entrain {

// Collective; blocks. Returns `from` with the measured latencies and rates of its links, the same
// on all ranks. A link that no pair uses keeps its figures.
absl::StatusOr<CostModel> ProbeLinks(Communicator& comm, const CostModel& from, const Paths& paths,
                                     const CallOptions& options);

}  // namespace entrain
