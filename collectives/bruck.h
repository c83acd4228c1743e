// Bruck's algorithms: few messages, for small parts, on any number of ranks.
//
// all_gather on five ranks. Before round k a rank has 2^k parts, beginning with its own. In round k
// it sends these parts to the rank 2^k places to the left. In the last round it sends only the
// parts that the receiver lacks:
//
//   round   rank 0 sends to 4, 3, 1    and then has
//     0     {0}                        0 1
//     1     {0 1}                      0 1 2 3
//     2     {0}                        0 1 2 3 4
//
//   It takes ceil(log2 n) rounds, and each rank sends n - 1 parts.
//
// all_to_all on four ranks. A block that must move j ranks onwards moves 2^k ranks onwards in each
// round k for which j has bit k. In a round, all blocks that a rank must move go in one message:
//
//   round   rank 0 sends
//     0     to 1: the blocks for 1 and 3   (1 = 1, 3 = 1 + 2 places)
//     1     to 2: the block for 2, and the block for 1 that came from 3
//
//   It takes ceil(log2 n) rounds and as many messages, of about n/2 parts each. Parts must be
//   equally long.
#pragma once

#include "collectives/draft.h"

namespace entrain::bruck {

void AllGather(Draft* draft, const Group& group, const Pieces& pieces);
// Adds one lane, which needs all ranks. Works in place, too.
void AllToAll(ScheduleBuilder* builder, int lane);

}  // namespace entrain::bruck
