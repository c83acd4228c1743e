#include "collectives/composed.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "collectives/direct.h"

namespace entrain::composed {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

// The ranks by host. Hosts count from 0 in the order of their first rank, whatever their numbers
// are.
struct Hosts {
  std::vector<Parts> ranks;   // by host
  std::vector<int> host_of;   // by rank
  std::vector<int> place_of;  // by rank: its position on its host

  int count() const { return static_cast<int>(ranks.size()); }
  int RanksOn(int host) const { return static_cast<int>(ranks[At(host)].size()); }
  Group Local(int rank) const { return {ranks[At(host_of[At(rank)])], place_of[At(rank)]}; }
};

Hosts Sort(absl::Span<const int> hosts) {
  Hosts sorted;
  std::map<int, int> number;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [entry, fresh] = number.emplace(hosts[rank], sorted.count());
    if (fresh) {
      sorted.ranks.emplace_back();
    }
    Parts& local = sorted.ranks[At(entry->second)];
    sorted.host_of.push_back(entry->second);
    sorted.place_of.push_back(static_cast<int>(local.size()));
    local.push_back(static_cast<int>(rank));
  }
  return sorted;
}

// Which rank of `host` has the partial sum of `part`.
using Holder = int (*)(const Hosts& hosts, int host, int part);

// all_reduce: consecutive parts to one rank, as evenly as can be, so that they travel together.
int HolderByRange(const Hosts& hosts, int host, int part) {
  const int n = static_cast<int>(hosts.host_of.size());
  return hosts.ranks[At(host)][At(part * hosts.RanksOn(host) / n)];
}

// reduce_scatter, all_gather: the rank at the place that the part's own rank has on its host (or,
// on a smaller host, at that place modulo its ranks). On its own host that is the part's rank
// itself.
int HolderByPlace(const Hosts& hosts, int host, int part) {
  return hosts.ranks[At(host)][At(hosts.place_of[At(part)] % hosts.RanksOn(host))];
}

// The host whose holder completes a part of all_reduce.
int HostOfResult(const Hosts& hosts, int part) {
  return part % hosts.count();
}

// What each rank of `host` holds.
Pieces Deal(const Hosts& hosts, int host, Holder holder) {
  Pieces pieces(At(hosts.RanksOn(host)));
  for (int part = 0; part < static_cast<int>(hosts.host_of.size()); ++part) {
    pieces[At(hosts.place_of[At(holder(hosts, host, part))])].push_back(part);
  }
  return pieces;
}

// For every rank of another host, the parts that pass between it and me in one direction; in rank
// order.
using Traffic = std::map<int, Parts>;

// One round: partial sums go to where they are completed, and are.
void ReduceAcross(Draft* draft, const Hosts& hosts, const Traffic& out, const Parts& completed) {
  const int me = draft->spec().rank;
  draft->BeginRound();
  std::vector<Contribution> from;
  for (int host = 0; host < hosts.count(); ++host) {
    // Each host contributes once to each part; which of its ranks does may differ from part to
    // part.
    if (host == hosts.host_of[At(me)] || completed.empty()) {
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
    draft->Combine(completed, hosts.host_of[At(me)], from, /*last=*/true);
  }
}

}  // namespace

bool Fits(absl::Span<const int> hosts) {
  const Hosts sorted = Sort(hosts);
  return sorted.count() > 1 && At(sorted.count()) < hosts.size();
}

void AllReduce(Draft* draft, absl::Span<const int> host_numbers) {
  const Hosts hosts = Sort(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.host_of[At(me)];
  const Group local = hosts.Local(me);
  const Pieces pieces = Deal(hosts, my_host, HolderByRange);
  direct::ReduceScatter(draft, local, pieces, /*last=*/false);

  Parts completed;
  Traffic partial;  // my partial sums that others complete
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
  const Hosts hosts = Sort(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.host_of[At(me)];
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
  const Hosts hosts = Sort(host_numbers);
  const int me = draft->spec().rank;
  const int my_host = hosts.host_of[At(me)];
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
  draft->Settle({me});  // it is sent with what lies beside it from here on
  direct::AllGather(draft, local, pieces);
}

tree::Branch BroadcastTree(const Spec& spec, absl::Span<const int> host_numbers) {
  const Hosts hosts = Sort(host_numbers);
  const int my_host = hosts.host_of[At(spec.rank)];
  const int root_host = hosts.host_of[At(spec.root)];
  Group local = hosts.Local(spec.rank);
  const int leader = my_host == root_host ? hosts.place_of[At(spec.root)] : 0;
  tree::Branch inside = tree::Binomial(local, leader);
  if (local.me != leader) {
    return inside;
  }
  Group leaders;
  leaders.me = my_host;
  for (int host = 0; host < hosts.count(); ++host) {
    leaders.ranks.push_back(host == root_host ? spec.root : hosts.ranks[At(host)][0]);
  }
  // The far ones first: they have the longer way.
  tree::Branch branch = tree::Binomial(leaders, root_host);
  branch.children.insert(branch.children.end(), inside.children.begin(), inside.children.end());
  return branch;
}

}  // namespace entrain::composed
