// all_to_all for several hosts. All blocks from one host to one rank of another host go in one
// message.
//
// Example with four ranks on the hosts {0 1} and {2 3}. ab is the block of rank a for rank b. Ranks
// on different hosts correspond if they have the same position on their hosts. Each rank collects
// the blocks of its host for the corresponding ranks of other hosts:
//
//   round        rank 0         rank 1         rank 2         rank 3
//     0  inside  01 03 -> 1     10 12 -> 0     23 21 -> 3     32 30 -> 2
//     1  across  02 12 -> 2     03 13 -> 3     20 30 -> 0     21 31 -> 1
//
//   h hosts of m ranks, n ranks in all: 2 rounds. Each rank sends m - 1 messages of h parts inside
//   its host, and h - 1 messages of m parts to other hosts. (The algorithm direct sends n - m
//   messages to other hosts.) Every block is copied before it is sent, so the call may be in place.
//   The algorithm is for small blocks, because most blocks are sent twice.
#pragma once

#include "absl/types/span.h"

#include "collectives/schedule.h"

namespace entrain::composed {

// Adds one lane, on all ranks. Parts must be equally long.
void AllToAll(ScheduleBuilder* builder, int lane, absl::Span<const int> hosts);

}  // namespace entrain::composed
