// Inside hosts, across hosts, inside hosts again, for hosts of any sizes. Each byte crosses between
// two hosts as rarely as it can; the inside is done by direct (direct.h). Made of the same
// fragments as the flat algorithms, on groups.
//
// all_reduce on four ranks, hosts {0 1} and {2 3}. Every host deals all parts out to its ranks;
// each part has one rank among its holders that completes it (the host numbers take turns):
//
//   round        rank 0       rank 1       rank 2       rank 3
//     0  inside  sums {0 1}   sums {2 3}   sums {0 1}   sums {2 3}   direct reduce_scatter
//     1  across  1 -> rank 2  3 -> rank 3  0 -> rank 0  2 -> rank 1  completes 0, 2, 1, 3
//     2  across  0 -> rank 2  2 -> rank 3  1 -> rank 0  3 -> rank 1  the completed parts
//     3  inside  all          all          all          all          direct all_gather
//
//   n ranks on h hosts, S bytes of D: 4 rounds; a host of m ranks sends 2 S (h-1)/h bytes to
//   others, its ranks share them; inside, a rank sends S (m-1)/m bytes twice. Hosts of different
//   size only deal the parts out differently, so the same four rounds serve them.
//
// reduce_scatter: rounds 0 and 1, each part completed by its own rank. all_gather: each part goes
// once to each other host, then direct all_gather inside. broadcast: a binomial tree over the first
// ranks of the hosts (the root stands for its own host), and one below each of them inside.
//
// barrier: signals to the first rank of the host, a dissemination barrier among these, signals back.
//
// gather: a host's parts meet on its first rank (on the root's host: the root), which sends them on
// together: 2 rounds, one message a host for the root, where direct has one a rank. scatter is its
// reverse.
#pragma once

#include "absl/types/span.h"

#include "collectives/draft.h"
#include "collectives/tree.h"

namespace entrain::composed {

// There are at least two hosts, and one of them has at least two ranks.
bool Fits(absl::Span<const int> hosts);

// `hosts[r]`: the host of rank r. All ranks, all parts.
void AllReduce(Draft* draft, absl::Span<const int> hosts);
void ReduceScatter(Draft* draft, absl::Span<const int> hosts);
void AllGather(Draft* draft, absl::Span<const int> hosts);
tree::Branch BroadcastTree(const Spec& spec, absl::Span<const int> hosts);
void Barrier(Draft* draft, absl::Span<const int> hosts);
void Gather(Draft* draft, absl::Span<const int> hosts);
void Scatter(Draft* draft, absl::Span<const int> hosts);

}  // namespace entrain::composed
