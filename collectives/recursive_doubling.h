// Recursive doubling, an all_reduce for few bytes on many ranks: logarithmically many rounds, with
// one message per rank in each. In round k, a rank exchanges its whole value with the rank at a
// distance of 2^k.
//
// all_reduce on four ranks. Every rank sends the sum that it has so far. Both sides add in rank
// order:
//
//   round   rank 0            rank 1            rank 2            rank 3
//     0     <-> 1: {0 1}      <-> 0: {0 1}      <-> 3: {2 3}      <-> 2: {2 3}
//     1     <-> 2: {0..3}     <-> 3: {0..3}     <-> 0: {0..3}     <-> 1: {0..3}
//
//   n ranks, S bytes of D: log2 n rounds, and each rank sends S log2 n bytes. If n is not a power
//   of two, the first ranks form pairs. Before the first round, one rank of each pair sends its
//   value to the other rank. After the last round, it gets the result from that rank. The pairs add
//   two rounds.
#pragma once

#include "collectives/draft.h"

namespace entrain::recursive_doubling {

// Combines contributions in rank order.
void AllReduce(Draft* draft, const Group& group, const Parts& parts);

}  // namespace entrain::recursive_doubling
