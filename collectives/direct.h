// Every rank exchanges messages with every other rank in one round. These algorithms need the
// fewest rounds, but send many messages at once.
//
// all_reduce on four ranks, one round. Each rank sends all of D to the three other ranks. Then it
// combines the four contributions in one operation, in rank order:
//
//           rank 0      rank 1      rank 2      rank 3
//   round   D0 -> all   D1 -> all   D2 -> all   D3 -> all     out = D0 + D1 + D2 + D3 everywhere
//
//   n ranks, S bytes of D: 1 round, S (n-1) bytes sent by each rank, scratch for n - 1 copies of D.
//   Use this algorithm for low latency.
//
// reduce_scatter on four ranks, one round; p.r is rank r's contribution to part p:
//
//           rank 0           rank 1           rank 2           rank 3
//   sends   1.0 2.0 3.0      0.1 2.1 3.1      0.2 1.2 3.2      0.3 1.3 2.3
//   makes   0.0+0.1+0.2+0.3  1.0+1.1+1.2+1.3  2.0+2.1+2.2+2.3  3.0+3.1+3.2+3.3
//
// all_gather: each rank sends its own part to all other ranks. reduce_scatter takes 1 round, and
// all_gather takes 1 round. In each of them, a rank sends n - 1 messages with S (n-1)/n bytes in
// all, the minimum. reduce_scatter combines all contributions in one operation. So a result is
// rounded once, and each contribution is read once.
//
// two_step all_reduce: the reduce_scatter above, then the all_gather above. barrier: every rank
// signals every other rank. broadcast, scatter: the root sends to all other ranks. reduce, gather:
// all other ranks send to the root. two_step reduce: the reduce_scatter above, then gather.
#pragma once

#include "collectives/draft.h"

namespace entrain::direct {

// Have the same effect as the functions of ring.h. ReduceScatter combines contributions in the
// group's order.
void ReduceScatter(Draft* draft, const Group& group, const Pieces& pieces, bool last);
void AllGather(Draft* draft, const Group& group, const Pieces& pieces);
// Every member gets the sum of all parts in kOut.
void AllReduce(Draft* draft, const Group& group, const Parts& parts);
// No member continues before all members have entered the barrier.
void Barrier(Draft* draft, const Group& group);

// Messages travel only between the root and the other members. `root` is a position in the group.
void Reduce(Draft* draft, const Group& group, int root, const Parts& parts);
void Gather(Draft* draft, const Group& group, int root, const Pieces& pieces);
void Scatter(Draft* draft, const Group& group, int root, const Pieces& pieces);

}  // namespace entrain::direct
