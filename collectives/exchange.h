// all_to_all, each block sent straight to where it belongs.
//
// direct: all at once. pairwise: one peer at a time, both ways at once; in round t rank r meets (t - r) mod n, as in a
// tournament, so that no two send to one:
//
//   round     0       1        2       3         n = 4
//           1 <-> 3  0 <-> 1  0 <-> 2  0 <-> 3
//                    2 <-> 3           1 <-> 2
//
// Both: n - 1 messages, n - 1 parts sent by a rank; direct in one round, pairwise in n at most, with one message under way
// each way. In place, what arrives waits in scratch until what lay there is sent: direct needs n - 1 parts of it, pairwise
// as much (lanes make it small).
#pragma once

#include "collectives/schedule.h"

namespace entrain::exchange {

// One lane each.
void Direct(ScheduleBuilder* builder, int lane);
void Pairwise(ScheduleBuilder* builder, int lane);

}  // namespace entrain::exchange
