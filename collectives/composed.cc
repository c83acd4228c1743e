#include "collectives/composed.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "collectives/direct.h"
#include "collectives/hosts.h"

namespace entrain::composed {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

// Returns the rank of `host` that holds the partial sum of `part`.
using Holder = int (*)(const Hosts& hosts, int host, int part);

// For all_reduce. Gives each rank consecutive parts, so that one message carries them. Distributes
// the parts as evenly as possible.
int HolderByRange(const Hosts& hosts, int host, int part) {
  const int n = static_cast<int>(hosts.host_of.size());
  return hosts.RanksOn(host)[At(part * hosts.SizeOf(host) / n)];
}

// For reduce_scatter and all_gather. The owner of a part is the rank with the part's number.
// Returns the rank of `host` whose position on `host` equals the owner's position on its own host.
// If `host` has too few ranks, takes the position modulo the number of its ranks. On the owner's
// host, returns the owner.
int HolderByPlace(const Hosts& hosts, int host, int part) {
  return hosts.RanksOn(host)[At(hosts.PlaceOf(part) % hosts.SizeOf(host))];
}

// Returns the host whose holder completes a part of an all_reduce.
int HostOfResult(const Hosts& hosts, int part) {
  return part % hosts.count();
}

// Returns the parts that each rank of `host` holds.
Pieces Deal(const Hosts& hosts, int host, Holder holder) {
  Pieces pieces(At(hosts.SizeOf(host)));
  for (int part = 0; part < static_cast<int>(hosts.host_of.size()); ++part) {
    pieces[At(hosts.PlaceOf(holder(hosts, host, part)))].push_back(part);
  }
  return pieces;
}

// For each rank of another host: the parts, in rank order, that travel between that rank and this
// rank in one direction.
using Traffic = std::map<int, Parts>;

// Adds one round. In this round, partial sums go to the ranks that compute the results, and this
// rank computes the results of `completed`.
void ReduceAcross(Draft* draft, const Hosts& hosts, const Traffic& out, const Parts& completed) {
  const int me = draft->spec().rank;
  draft->BeginRound();
  std::vector<Contribution> from;
  for (int host = 0; host < hosts.count(); ++host) {
    // Each host contributes once to each part, but different parts may come from different ranks of
    // the host.
    if (host == hosts.HostOf(me) || completed.empty()) {
      continue;
    }
    std::map<int, Parts> by_rank;
    for (const int part : completed) {
      const Holder holder =
          draft->spec().kind == CallKind::kAllReduce ? HolderByRange : HolderByPlace;
      by_rank[holder(hosts, host, part)].push_back(part);
    }
    for (const auto& [rank, parts] : by_rank) {
      from.push_back(draft->RecvContribution(rank, host, parts));
    }
  }
  for (const auto& [rank, parts] : out) {
    draft->Send(rank, parts);
  }
  if (!completed.empty()) {
    draft->Combine(completed, hosts.HostOf(me), from, /*last=*/true);
  }
}

// Returns the leader of a host: the root on the root's host, else the first rank of the host.
int LeaderOf(const Hosts& hosts, const Spec& spec, int host) {
  return HasRoot(spec.kind) && host == hosts.HostOf(spec.root) ? spec.root : hosts.RanksOn(host)[0];
}

Group Leaders(const Hosts& hosts, const Spec& spec) {
  Group leaders;
  leaders.me = hosts.HostOf(spec.rank);
  for (int host = 0; host < hosts.count(); ++host) {
    leaders.ranks.push_back(LeaderOf(hosts, spec, host));
  }
  return leaders;
}

}  // namespace

bool Fits(absl::Span<const int> hosts) {
  const Hosts sorted(hosts);
  return sorted.count() > 1 && At(sorted.count()) < hosts.size();
}

void AllReduce(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.HostOf(me);
  const Group local = hosts.Local(me);
  const Pieces pieces = Deal(hosts, my_host, HolderByRange);
  direct::ReduceScatter(draft, local, pieces, /*last=*/false);

  Parts completed;
  Traffic partial;  // this rank's partial sums that other ranks complete
  for (const int part : pieces[At(local.me)]) {
    const int host = HostOfResult(hosts, part);
    if (host == my_host) {
      completed.push_back(part);
    } else {
      partial[HolderByRange(hosts, host, part)].push_back(part);
    }
  }
  ReduceAcross(draft, hosts, partial, completed);

  draft->BeginRound();
  for (const auto& [rank, parts] : partial) {
    draft->Recv(rank, parts);
  }
  Traffic results;
  for (const int part : completed) {
    for (int host = 0; host < hosts.count(); ++host) {
      if (host != my_host) {
        results[HolderByRange(hosts, host, part)].push_back(part);
      }
    }
  }
  for (const auto& [rank, parts] : results) {
    draft->Send(rank, parts);
  }
  direct::AllGather(draft, local, pieces);
}

void ReduceScatter(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.HostOf(me);
  const Group local = hosts.Local(me);
  const Pieces pieces = Deal(hosts, my_host, HolderByPlace);
  direct::ReduceScatter(draft, local, pieces, /*last=*/false);
  Traffic partial;
  for (const int part : pieces[At(local.me)]) {
    if (part != me) {
      partial[part].push_back(part);
    }
  }
  ReduceAcross(draft, hosts, partial, {me});
}

void AllGather(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.HostOf(me);
  const Group local = hosts.Local(me);
  const Pieces pieces = Deal(hosts, my_host, HolderByPlace);
  draft->BeginRound();
  for (const int part : pieces[At(local.me)]) {
    if (part != me) {
      draft->Recv(part, {part});
    }
  }
  for (int host = 0; host < hosts.count(); ++host) {
    if (host != my_host) {
      draft->Send(HolderByPlace(hosts, host, me), {me});
    }
  }
  // The next round may send this part in one message with received parts, which are in kOut.
  draft->Settle({me});
  direct::AllGather(draft, local, pieces);
}

tree::Branch BroadcastTree(const Spec& spec, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const int my_host = hosts.HostOf(spec.rank);
  const int leader = LeaderOf(hosts, spec, my_host);
  tree::Branch inside = tree::Binomial(hosts.Local(spec.rank), hosts.PlaceOf(leader));
  if (spec.rank != leader) {
    return inside;
  }
  // Serves the other hosts first, because messages to them take longer.
  tree::Branch branch = tree::Binomial(Leaders(hosts, spec), hosts.HostOf(spec.root));
  branch.children.insert(branch.children.end(), inside.children.begin(), inside.children.end());
  return branch;
}

void Barrier(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.HostOf(me);
  const int leader = LeaderOf(hosts, draft->spec(), my_host);
  draft->BeginRound();
  if (me != leader) {
    draft->Signal(leader);
    draft->AwaitSignal(leader);
    return;
  }
  for (const int rank : hosts.RanksOn(my_host)) {
    if (rank != me) {
      draft->AwaitSignal(rank);
    }
  }
  tree::Barrier(draft, Leaders(hosts, draft->spec()));
  draft->BeginRound();
  for (const int rank : hosts.RanksOn(my_host)) {
    if (rank != me) {
      draft->Signal(rank);
    }
  }
}

void Gather(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const Spec& spec = draft->spec();
  const int my_host = hosts.HostOf(spec.rank);
  const int leader = LeaderOf(hosts, spec, my_host);
  const Parts& local = hosts.RanksOn(my_host);
  draft->BeginRound();
  if (spec.rank != leader) {
    draft->Send(leader, {spec.rank});
    return;
  }
  if (leader != spec.root) {
    draft->Assemble(local);
  }
  for (const int rank : local) {
    if (rank != spec.rank) {
      draft->Recv(rank, {rank});
    }
  }
  if (leader != spec.root) {
    draft->BeginRound();
    draft->Send(spec.root, local);
    return;
  }
  for (int host = 0; host < hosts.count(); ++host) {
    if (host != my_host) {
      draft->Recv(LeaderOf(hosts, spec, host), hosts.RanksOn(host));
    }
  }
  draft->Settle({spec.rank});
}

void Scatter(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts(host_numbers);
  const Spec& spec = draft->spec();
  const int my_host = hosts.HostOf(spec.rank);
  const int leader = LeaderOf(hosts, spec, my_host);
  const Parts& local = hosts.RanksOn(my_host);
  draft->BeginRound();
  if (spec.rank != leader) {
    draft->Recv(leader, {spec.rank});
    return;
  }
  if (leader != spec.root) {
    draft->Recv(spec.root, local);
    draft->BeginRound();
  } else {
    // Serves the other hosts first, because messages to them take longer.
    for (int host = 0; host < hosts.count(); ++host) {
      if (host != my_host) {
        draft->Send(LeaderOf(hosts, spec, host), hosts.RanksOn(host));
      }
    }
  }
  for (const int rank : local) {
    if (rank != spec.rank) {
      draft->Send(rank, {rank});
    }
  }
  draft->Settle({spec.rank});
}

}  // namespace entrain::composed
