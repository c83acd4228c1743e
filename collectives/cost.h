// What a schedule costs, counted from the schedule itself: the table in docs/algorithms.md. What it
// takes on a machine is in timeline.h.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

struct Cost {
  int rounds = 0;  // of the longest lane
  // The longest chain of messages that wait for one another: what a call of no data takes. Over all
  // ranks in CountWorstCost; CountCost sees one rank only and gives its rounds.
  int hops = 0;
  int hops_across = 0;   // the same, counting messages between hosts only
  int64_t messages = 0;  // sent
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t bytes_sent_across = 0;  // of bytes_sent, to other hosts
  int64_t bytes_received_across = 0;
  int64_t reduced_elements =
      0;  // one for each pair that is combined: an element of n operands counts n - 1
  int64_t reduced_bytes = 0;
  int64_t scratch_bytes = 0;  // of all lanes together
};

// Of one rank. `hosts` as in Algorithm::build; empty: all on one host.
Cost CountCost(const Schedule& schedule, const Layout& layout, int64_t element_bytes,
               absl::Span<const int> hosts = {});

// The largest of each figure over all ranks. Builds every rank's schedule. spec.rank does not
// matter.
Cost CountWorstCost(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes);

}  // namespace entrain
