// Everything to everybody in the fewest hops: in round k a rank exchanges all it has with the one 2^k away.
//
// all_reduce on four ranks: every rank sends its whole sum so far, and both sides add in rank order:
//
//   round   rank 0            rank 1            rank 2            rank 3
//     0     <-> 1: {0 1}      <-> 0: {0 1}      <-> 3: {2 3}      <-> 2: {2 3}
//     1     <-> 2: {0..3}     <-> 3: {0..3}     <-> 0: {0..3}     <-> 1: {0..3}
//
//   log2 n rounds, S log2 n bytes sent by a rank. Where n is no power of two, the first ranks work in pairs: one gives
//   its value to its neighbour first and gets the result last, which makes two rounds more.
#pragma once

#include "collectives/draft.h"

namespace entrain::recursive_doubling {

// Contributions are combined in rank order.
void AllReduce(Draft* draft, const Group& group, const Parts& parts);

}  // namespace entrain::recursive_doubling
