// Bruck's: few messages, for small parts, on any number of ranks.
//
// all_gather on five ranks: in round k a rank sends the 2^k parts it has, its own the first, 2^k places to the left:
//
//   round   rank 0 sends to 4, 3, 1    and then has
//     0     {0}                        0 1
//     1     {0 1}                      0 1 2 3
//     2     {0}                        0 1 2 3 4
//
//   ceil(log2 n) rounds, n - 1 parts sent.
//
// all_to_all on four ranks: what must travel j places travels 2^k places in round k if j has that bit, all of it in one
// message:
//
//   round   rank 0 sends
//     0     to 1: what is for 1 and 3        (1 = 1, 3 = 1 + 2 places)
//     1     to 2: what is for 2, and what 3 sent here for 1
//
//   ceil(log2 n) rounds, as many messages, about n/2 parts in each. Parts must be equally long.
#pragma once

#include "collectives/draft.h"

namespace entrain::bruck {

void AllGather(Draft* draft, const Group& group, const Pieces& pieces);
// One lane, on all ranks. Right in place, too.
void AllToAll(ScheduleBuilder* builder, int lane);

}  // namespace entrain::bruck
