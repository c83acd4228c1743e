// Hierarchical algorithms. Hosts may have different numbers of ranks. Data moves inside hosts, then
// across hosts, then inside hosts again. So each byte crosses between two hosts as rarely as
// possible. Inside a host the ranks use the algorithm `direct` (direct.h). Hierarchical algorithms
// call the fragments (draft.h) of the other algorithms, because a fragment works on any group of
// ranks.
//
// all_reduce on four ranks, hosts {0 1} and {2 3}. Every host distributes all parts among its
// ranks, so each part has one holder per host. With h hosts, the holder on host (part mod h)
// computes the result of the part:
//
//   round        rank 0       rank 1       rank 2       rank 3
//     0  inside  sums {0 1}   sums {2 3}   sums {0 1}   sums {2 3}   direct reduce_scatter
//     1  across  1 -> rank 2  3 -> rank 3  0 -> rank 0  2 -> rank 1  ranks get 0, 2, 1, 3
//     2  across  0 -> rank 2  2 -> rank 3  1 -> rank 0  3 -> rank 1  the results
//     3  inside  all          all          all          all          direct all_gather
//
//   n ranks on h hosts, S bytes of data (D, spec.h): 4 rounds. A host sends 2 S (h-1)/h bytes to
//   other hosts, and its m ranks share this work. Inside a host, each rank sends S (m-1)/m bytes
//   twice. If hosts have different numbers of ranks, only the distribution of the parts differs.
//
// reduce_scatter: rounds 0 and 1, but each rank computes the result of its own part. all_gather:
// each part goes once to each other host. Then a direct all_gather runs inside each host.
// broadcast: the leader of the root's host is the root. The leader of any other host is its first
// rank. A binomial tree connects the leaders, and inside each host a binomial tree begins at the
// leader.
//
// barrier: each rank signals the first rank of its host. The first ranks run a dissemination
// barrier. Then each first rank signals to the other ranks of its host.
//
// gather: the leader of a host collects the parts of its host and sends them to the root in one
// message. That takes 2 rounds. The root receives one message per host. (With the algorithm direct,
// the root receives one message per rank.) scatter is the reverse.
#pragma once

#include "absl/types/span.h"

#include "collectives/draft.h"
#include "collectives/tree.h"

namespace entrain::composed {

// Returns true if there are at least two hosts, and one of them has at least two ranks.
bool Fits(absl::Span<const int> hosts);

// Every function works on all ranks and all parts. `hosts[r]` is the host of rank r.
void AllReduce(Draft* draft, absl::Span<const int> hosts);
void ReduceScatter(Draft* draft, absl::Span<const int> hosts);
void AllGather(Draft* draft, absl::Span<const int> hosts);
tree::Branch BroadcastTree(const Spec& spec, absl::Span<const int> hosts);
void Barrier(Draft* draft, absl::Span<const int> hosts);
void Gather(Draft* draft, absl::Span<const int> hosts);
void Scatter(Draft* draft, absl::Span<const int> hosts);

}  // namespace entrain::composed
