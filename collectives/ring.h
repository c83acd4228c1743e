// Around a ring: every member talks to its two neighbours only. The fewest bytes, the most rounds.
//
// reduce_scatter on four ranks, part p ends at rank p; a number is a part, its sum grows as it
// travels:
//
//   round   0 -> 1   1 -> 2   2 -> 3   3 -> 0
//     0       3        0        1        2       what arrives is combined with the own contribution
//     1       2        3        0        1       and sent on
//     2       1        2        3        0       complete on arrival and combination
//
// all_gather on four ranks, each complete part goes once around:
//
//   round   0 -> 1   1 -> 2   2 -> 3   3 -> 0
//     0       0        1        2        3
//     1       3        0        1        2
//     2       2        3        0        1
//
// n ranks, S bytes of D: n - 1 rounds and S (n-1)/n bytes sent each; all_reduce is one after the
// other. No copy: sums go to kOut or stay in scratch. broadcast is a chain along the ring (tree.h),
// for data cut into many lanes: S bytes sent each, n - 1 messages one after another for the first
// lane, the others follow close behind.
#pragma once

#include "collectives/draft.h"

namespace entrain::ring {

// Everybody holds contributions to all pieces; afterwards everybody owns the sum of the own piece.
// `last`: nothing else is to be combined into it.
void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last);
// Everybody holds the own piece; afterwards everybody has all of them in kOut.
void AllGather(Draft* draft, const Group& group, const Pieces& pieces);

}  // namespace entrain::ring
