// all_to_all for several hosts. Blocks for the same rank of another host travel together.
//
// Example with four ranks on the hosts {0 1} and {2 3}. ab is the block of rank a for rank b. Each
// rank collects the blocks of its host for those ranks of other hosts that have the same position
// on their host as this rank has on its own:
//
//   round        rank 0         rank 1         rank 2         rank 3
//     0  inside  01 03 -> 1     10 12 -> 0     23 21 -> 3     32 30 -> 2
//     1  across  02 12 -> 2     03 13 -> 3     20 30 -> 0     21 31 -> 1
//
//   h hosts of m ranks: 2 rounds, m - 1 messages of h parts inside and h - 1 messages of m parts
//   across, where direct sends n - m messages across. Every block is packed first, so the call may
//   be in place. The algorithm is for small blocks, because most blocks are moved twice.
#pragma once

#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain::composed {

// Adds one lane, which needs all ranks. Parts must be equally long.
void AllToAll(ScheduleBuilder* builder, int lane, absl::Span<const int> hosts);

}  // namespace entrain::composed
