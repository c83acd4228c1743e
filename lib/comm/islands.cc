#include "lib/comm/islands.h"

#include <algorithm>

namespace entrain {
namespace {

int HostOf(const Topology& topology, int rank) {
  return topology.host_of[static_cast<size_t>(rank)];
}

}  // namespace

std::optional<Islands> Islands::Of(const Topology& topology, int rank) {
  const std::vector<int>& host_of = topology.host_of;
  const auto ranks = static_cast<int>(host_of.size());
  Islands islands;
  islands.count = topology.hosts;
  islands.size = ranks / std::max(topology.hosts, 1);
  if (islands.count < 2 || islands.size < 2) {
    return std::nullopt;
  }
  for (int host = 0; host < topology.hosts; ++host) {
    if (std::count(host_of.begin(), host_of.end(), host) != islands.size) {
      return std::nullopt;
    }
  }
  islands.mine = HostOf(topology, rank);
  // Hosts are numbered in the order of their first rank.
  islands.consecutive = std::is_sorted(host_of.begin(), host_of.end());
  islands.inside = topology.Local(rank);
  islands.across = topology.Across(rank);
  return islands;
}

int Islands::AcrossOf(const Topology& topology, int rank) const {
  const auto found = std::find_if(across.ranks.begin(), across.ranks.end(), [&](int one) {
    return HostOf(topology, one) == HostOf(topology, rank);
  });
  return static_cast<int>(found - across.ranks.begin());
}

}  // namespace entrain
