// all_to_all in which each block goes straight to its destination.
//
// direct: a rank exchanges with all peers at once. pairwise: a rank exchanges with one peer at a
// time, in both directions at once. In round t, rank r exchanges with rank (t - r) mod n, as in a
// tournament, so that no two ranks send to the same rank:
//
//   round     0       1        2       3         n = 4
//           1 <-> 3  0 <-> 1  0 <-> 2  0 <-> 3
//                    2 <-> 3           1 <-> 2
//
// In both algorithms each rank sends n - 1 messages of one part. direct takes one round. pairwise
// takes at most n rounds, with one message in flight in each direction. If the call is in place, a
// received block waits in scratch until the block that it replaces was sent. Each lane then needs
// scratch for n - 1 blocks. The blocks are small if the call has many lanes.
#pragma once

#include "collectives/schedule.h"

namespace entrain::exchange {

// Each function adds one lane.
void Direct(ScheduleBuilder* builder, int lane);
void Pairwise(ScheduleBuilder* builder, int lane);

}  // namespace entrain::exchange
