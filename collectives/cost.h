// Counts the cost of a schedule: its rounds, messages and bytes (the table in docs/algorithms.md).
// Also estimates the time of a lane on a machine.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "collectives/catalog.h"
#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

struct Cost {
  int rounds = 0;  // rounds of the longest lane
  // The length of the longest chain of messages that wait for one another. It determines the time
  // of a call without data. CountWorstCost counts the chain over all ranks. CountCost knows only
  // one rank, and sets `hops` to `rounds`.
  int hops = 0;
  int hops_across = 0;   // like hops, but counts only messages between hosts
  int64_t messages = 0;  // number of messages sent
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t bytes_sent_across = 0;  // the part of bytes_sent that goes to other hosts
  int64_t bytes_received_across = 0;
  int64_t reduced_elements = 0;  // n operands of one element count n - 1
  int64_t reduced_bytes = 0;
  int64_t scratch_bytes = 0;  // of all lanes together
};

// Counts the cost of one rank. `hosts` is as in Algorithm::build. If it is empty, all ranks are on
// one host.
Cost CountCost(const Schedule& schedule, const Layout& layout, int64_t element_bytes,
               absl::Span<const int> hosts = {});

// The cost of a message. Times are integers: picoseconds, and femtoseconds per byte. With integers,
// all ranks compute equal sums and choose the same algorithm.
struct LinkCost {
  int64_t latency_ps = 0;  // from the end of the send to the arrival
  int64_t message_ps = 0;  // work of the sender, and the same again of the receiver
  int64_t byte_fs = 0;     // work of the receiver
  // Time per byte on a medium that all ranks of a host share. For messages inside a host, the
  // medium is its memory. For messages between hosts, it is one direction of the host's network.
  int64_t wire_fs = 0;
};

struct MachineCost {
  LinkCost inside, across;  // inside a host; between hosts
  // Time to combine two operands, per byte of the result. The time for more operands is
  // proportional to the bytes that are read and written.
  int64_t reduce_fs = 0;
  int64_t switch_ps = 0;  // per round in which a rank waits, if its host has more ranks than cores
  int cores = 0;          // cores of each host; 0: enough for all ranks
};

// A call of n lanes takes first_ps + (n - 1) * next_ps.
struct LaneCost {
  // Time of one lane alone: the longest chain of messages and local work that wait for one another.
  int64_t first_ps = 0;
  int64_t next_ps = 0;  // each further lane: the busy time of the busiest rank, core or medium
};

// Computes the time of the first lane from every rank's schedule, in rank order. `hosts` and
// `layout` are as for CountCost.
LaneCost CountLane(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
                   const Layout& layout, int64_t element_bytes, const MachineCost& machine);

// Returns the largest of each figure over all ranks. Builds every rank's schedule. Ignores
// spec.rank.
Cost CountWorstCost(const Algorithm& algorithm, const Spec& spec, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes);

}  // namespace entrain
