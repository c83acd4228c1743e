// Prefix reductions: rank r gets the combined values of ranks 0 .. r (inclusive) or 0 .. r - 1
// (exclusive), in rank order. Rank 0 of an exclusive scan gets nothing.
//
// doubling, inclusive, on five ranks. In round k, rank r sends its current value to rank r + 2^k.
// After the round, the ranks have:
//
//   round   rank 0   rank 1   rank 2   rank 3   rank 4
//     0     {0}      {0 1}    {1 2}    {2 3}    {3 4}
//     1     {0}      {0 1}    {0..2}   {0..3}   {1..4}
//     2     {0}      {0 1}    {0..2}   {0..3}   {0..4}
//
//   n ranks, S bytes: ceil(log2 n) rounds of S bytes each. exclusive: each rank first sends its
//   value to the next rank. Then all ranks but rank 0 run the inclusive scan on the received
//   values.
//
// chain ("ring" in the catalog): rank r adds its own value to the sum from rank r - 1, and sends
// the new sum to rank r + 1. There are n - 1 hops, and each rank but the last sends S bytes. When a
// lane has passed a rank, the next lane can follow.
#pragma once

#include "collectives/schedule.h"

namespace entrain::scan {

// Each function adds one lane. The spec says which kind of scan it is.
void Doubling(ScheduleBuilder* builder, int lane);
void Chain(ScheduleBuilder* builder, int lane);

}  // namespace entrain::scan
