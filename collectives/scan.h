// Prefix reductions: rank r gets the combined values of ranks 0 .. r (inclusive) or 0 .. r - 1
// (exclusive), in rank order. Rank 0 of an exclusive scan gets nothing.
//
// doubling, inclusive, on five ranks. In round k a rank sends its current value 2^k places to the
// right, and then has:
//
//   round   rank 0   rank 1   rank 2   rank 3   rank 4
//     0     {0}      {0 1}    {1 2}    {2 3}    {3 4}
//     1     {0}      {0 1}    {0..2}   {0..3}   {1..4}
//     2     {0}      {0 1}    {0..2}   {0..3}   {0..4}
//
//   It takes ceil(log2 n) rounds of S bytes each. exclusive: all values first move one place to the
//   right. Then all ranks but 0 run the inclusive scan.
//
// chain: each rank adds its own value to the one from the left and sends the sum on. There
// are n - 1 hops, and each rank sends S bytes. Lanes follow each other along the chain.
#pragma once

#include "collectives/schedule.h"

namespace entrain::scan {

// Each function adds one lane. The spec says which kind of scan it is.
void Doubling(ScheduleBuilder* builder, int lane);
void Chain(ScheduleBuilder* builder, int lane);

}  // namespace entrain::scan
