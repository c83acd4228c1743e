// Bruck's algorithms: few messages, for small parts, on any number of ranks.
//
// all_gather on five ranks. Before round k, rank r has 2^k parts: its own part and the parts of the
// next ranks. In round k, rank r sends these parts to rank r - 2^k, counted modulo the number of
// ranks. In the last round, it sends only the parts that the receiver lacks:
//
//   round   rank 0 sends to 4, 3, 1    and then has
//     0     {0}                        0 1
//     1     {0 1}                      0 1 2 3
//     2     {0}                        0 1 2 3 4
//
//   n ranks: ceil(log2 n) rounds. Each rank sends n - 1 parts.
//
// all_to_all on four ranks. Let j be the distance from a block's source to its destination. If bit
// k of j is set, the block moves 2^k ranks onwards in round k. In each round, a rank sends one
// message with all its blocks that move:
//
//   round   rank 0 sends
//     0     to 1: the blocks for 1 and 3   (1 = 1, 3 = 1 + 2 places)
//     1     to 2: the block for 2, and the block for 1 that came from 3
//
//   n ranks: ceil(log2 n) rounds. In each round, a rank sends one message of about n/2 parts. Parts
//   must be equally long.
#pragma once

#include "collectives/draft.h"

namespace entrain::bruck {

void AllGather(Draft* draft, const Group& group, const Pieces& pieces);
// Adds one lane, on all ranks. The call may be in place.
void AllToAll(ScheduleBuilder* builder, int lane);

}  // namespace entrain::bruck
