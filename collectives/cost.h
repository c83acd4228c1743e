// Counts the cost of a schedule from the schedule itself (the table in docs/algorithms.md), and the time of a lane on a machine.
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

// The cost of a message. Times are whole picoseconds, and femtoseconds a byte, so that all ranks compute the same sums and choose
// alike.
struct LinkCost {
  int64_t latency_ps = 0;  // from having been sent to being there
  int64_t message_ps = 0;  // work of the sender, and again of the receiver
  int64_t byte_fs = 0;     // work of the receiver
  // The ranks of a host share this: the memory for messages inside, each direction of the network for those across.
  int64_t wire_fs = 0;
};

struct MachineCost {
  LinkCost inside, across;  // between ranks of a host; between hosts
  // Combining two operands, each byte of the result. More operands cost by the bytes that are touched.
  int64_t reduce_fs = 0;
  int64_t switch_ps =
      0;          // for a round in which a rank waits, where a host has more ranks than cores
  int cores = 0;  // of each host; 0: enough
};

// A call of n lanes takes first_ps + (n - 1) * next_ps.
struct LaneCost {
  int64_t first_ps =
      0;  // a lane alone: the longest chain of messages and work that wait for one another
  int64_t next_ps = 0;  // a lane behind another: the work of the busiest rank, core or wire
};

// Counts the first lane of every rank's schedule, in order of ranks. `hosts` and `layout` are as above.
LaneCost CountLane(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
                   const Layout& layout, int64_t element_bytes, const MachineCost& machine);

// The largest of each figure over all ranks. Builds every rank's schedule. spec.rank does not
// matter.
Cost CountWorstCost(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes);

}  // namespace entrain
