// Ring algorithms: every member exchanges messages with its two neighbours only. A ring sends the
// fewest bytes, but needs the most rounds.
//
// reduce_scatter on four ranks, where part p ends at rank p. Each number names a part. The sum of a
// part grows from rank to rank:
//
//   round   0 -> 1   1 -> 2   2 -> 3   3 -> 0
//     0       3        0        1        2       the receiver adds its own contribution
//     1       2        3        0        1       and sends the sum to the next rank
//     2       1        2        3        0       complete when the receiver has added its own
//
// all_gather on four ranks: each complete part goes once around:
//
//   round   0 -> 1   1 -> 2   2 -> 3   3 -> 0
//     0       0        1        2        3
//     1       3        0        1        2
//     2       2        3        0        1
//
// n ranks, S bytes of D: n - 1 rounds and S (n-1)/n bytes sent by each rank. all_reduce is
// reduce_scatter, then all_gather. No sum is copied: sums go to kOut or stay in scratch. broadcast
// is a chain along the ring (tree.h), for data that is cut into many lanes. Each rank but the last
// sends S bytes. The first lane takes n - 1 messages, one after another. The other lanes follow the
// first lane with little delay.
#pragma once

#include "collectives/draft.h"

namespace entrain::ring {

// Before the call, every member has contributions to all pieces. Afterwards every member owns the
// sum of its own piece. `last`: nothing else will be combined into these sums.
void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last);
// Before the call, every member has its own piece. Afterwards every member has all pieces in kOut.
void AllGather(Draft* draft, const Group& group, const Pieces& pieces);

}  // namespace entrain::ring
