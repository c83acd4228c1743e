// Recursive halving and doubling for any number of ranks: the ring's bytes in logarithmic rounds.
//
// reduce_scatter. The group is cut into a first half A and a second half B. Every member has a
// partner in the other half. It sends the partner its contributions to all pieces of the partner's
// half, and continues within its own half. Four ranks:
//
//   round   pairs        sends the parts                   then holds sums of two, of
//     0     0-2  1-3     0, 1: {2 3}      2, 3: {0 1}      0, 1: {0 1}     2, 3: {2 3}
//     1     0-1  2-3     0: {1}  1: {0}   2: {3}  3: {2}   the own part, complete
//
// If the halves have different sizes, A has one more member than B. This member has no partner. For
// each piece of B, it sends its contribution to the member of B that will own the piece, in a
// message of its own. So no member carries twice the load. Five ranks, A = {0 1 2}, B = {3 4}:
//
//   round  pairs     sends the parts                                then holds sums of
//     0    0-3 1-4   0, 1: {3 4}  3, 4: {0 1 2}  2: {3} -> 3,       the own half
//                                                   {4} -> 4
//     1    0-2 3-4   0: {2}  2: {0 1}  3: {4}  4: {3}  1: {2} -> 2  the own half
//     2    0-1       0: {1}  1: {0}                                 the own part
//
// Every member sends each of its contributions to other members' pieces exactly once: S (n-1)/n
// bytes and ceil(log2 n) rounds. If n is a power of two, both numbers are optimal. If the halves
// have different sizes, each member of B receives one more piece in that round.
//
// all_gather runs the same rounds backwards: pairs exchange the pieces of their halves, and the
// members of B send their own pieces to the member of A that has no partner. all_reduce is
// reduce_scatter, then all_gather.
#pragma once

#include "collectives/draft.h"

namespace entrain::halving_doubling {

// Do the same as the functions of ring.h.
void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last);
void AllGather(Draft* draft, const Group& group, const Pieces& pieces);

}  // namespace entrain::halving_doubling
