// Recursive halving and doubling, for any number of ranks. They send about as few bytes as the
// ring, in logarithmically many rounds.
//
// reduce_scatter. The group is cut into a first half A and a second half B. Every member has a
// partner in the other half. A member sends its partner its contributions to all pieces of the
// partner's half. Then each half is cut in the same way. Four ranks:
//
//   round   pairs        sends the parts                   then holds sums of two, of
//     0     0-2  1-3     0, 1: {2 3}      2, 3: {0 1}      0, 1: {0 1}     2, 3: {2 3}
//     1     0-1  2-3     0: {1}  1: {0}   2: {3}  3: {2}   the own part, complete
//
// If the halves have different sizes, A has one more member than B. The last member of A then has
// no partner. It sends each member of B its contribution to the piece that the member of B will
// own, so all members of B receive an equal part of the additional bytes. On five ranks, with
// A = {0 1 2} and B = {3 4}:
//
//   round  pairs     sends the parts                                then holds sums of
//     0    0-3 1-4   0, 1: {3 4}  3, 4: {0 1 2}  2: {3} -> 3,       the own half
//                                                   {4} -> 4
//     1    0-2 3-4   0: {2}  2: {0 1}  3: {4}  4: {3}  1: {2} -> 2  the own half
//     2    0-1       0: {1}  1: {0}                                 the own part
//
// n ranks, S bytes of D: ceil(log2 n) rounds. Every member sends each of its contributions to other
// members' pieces exactly once, S (n-1)/n bytes in all. If n is a power of two, both numbers are
// optimal. If the halves have different sizes, each member of B receives one more piece in that
// round.
//
// all_gather runs the same rounds in reverse order. Partners exchange the pieces of their halves.
// If a member of A has no partner, every member of B also sends its own piece to that member.
// all_reduce is reduce_scatter, then all_gather.
#pragma once

#include "collectives/draft.h"

namespace entrain::halving_doubling {

// Have the same effect as the functions of ring.h.
void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last);
void AllGather(Draft* draft, const Group& group, const Pieces& pieces);

}  // namespace entrain::halving_doubling
