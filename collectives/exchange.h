// all_to_all in which each block goes straight to its destination.
//
// direct: a rank exchanges blocks with all peers at once. pairwise: a rank exchanges blocks with
// one peer at a time, in both directions. In step t, rank r exchanges with rank (t - r) mod n. So
// no two ranks send to the same rank in one step. A rank that would exchange with itself skips the
// step:
//
//   step      0       1        2       3         n = 4
//           1 <-> 3  0 <-> 1  0 <-> 2  0 <-> 3
//                    2 <-> 3           1 <-> 2
//
// In both algorithms each rank sends n - 1 messages of one part. direct takes one round. pairwise
// takes n - 1 rounds, and a rank has one message in flight in each direction. If the call is in
// place, a received block stays in scratch until the block that it replaces was sent. Each lane
// then needs scratch for n - 1 blocks. (If the call has many lanes, these blocks are small.)
#pragma once

#include "collectives/schedule.h"

namespace entrain::exchange {

// Each function adds one lane.
void Direct(ScheduleBuilder* builder, int lane);
void Pairwise(ScheduleBuilder* builder, int lane);

}  // namespace entrain::exchange
