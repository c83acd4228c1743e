// Recursive doubling, the fewest hops for an all_reduce: in round k a rank exchanges its whole
// value with the rank 2^k away.
//
// all_reduce on four ranks. Every rank sends its whole sum so far, and both sides add in rank
// order:
//
//   round   rank 0            rank 1            rank 2            rank 3
//     0     <-> 1: {0 1}      <-> 0: {0 1}      <-> 3: {2 3}      <-> 2: {2 3}
//     1     <-> 2: {0..3}     <-> 3: {0..3}     <-> 0: {0..3}     <-> 1: {0..3}
//
//   It takes log2 n rounds, and each rank sends S log2 n bytes. If n is not a power of two, the
//   first ranks form pairs. One rank of a pair sends its value to the other before the first round,
//   and gets the result after the last round. This adds two rounds.
#pragma once

#include "collectives/draft.h"

namespace entrain::recursive_doubling {

// Combines contributions in rank order.
void AllReduce(Draft* draft, const Group& group, const Parts& parts);

}  // namespace entrain::recursive_doubling
