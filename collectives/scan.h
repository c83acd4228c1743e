// Prefixes: rank r gets what ranks 0 .. r (inclusive) or 0 .. r - 1 (exclusive) have, combined in rank order. Rank 0 of
// an exclusive scan gets nothing.
//
// doubling, inclusive, on five ranks; in round k a rank sends what it has 2^k places on:
//
//   round   rank 0   rank 1   rank 2   rank 3   rank 4
//     0     {0}      {0 1}    {1 2}    {2 3}    {3 4}
//     1     {0}      {0 1}    {0..2}   {0..3}   {1..4}
//     2     {0}      {0 1}    {0..2}   {0..3}   {0..4}
//
//   ceil(log2 n) rounds, S bytes in each. exclusive: values go one place on first, then the ranks behind 0 do the same.
// chain: each rank adds its own to what comes from the left and passes it on: n - 1 hops, S bytes sent by a rank, and
//   lanes follow each other.
#pragma once

#include "collectives/schedule.h"

namespace entrain::scan {

// One lane each; the spec says which kind.
void Doubling(ScheduleBuilder* builder, int lane);
void Chain(ScheduleBuilder* builder, int lane);

}  // namespace entrain::scan
