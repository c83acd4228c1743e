#include "lib/device/calls/node_groups.h"

#include <algorithm>

namespace entrain {
namespace {

int HostOf(const Topology& topology, int rank) {
  return topology.host_of[static_cast<size_t>(rank)];
}

}  // namespace

std::optional<NodeGroups> NodeGroups::Of(const Topology& topology, int rank) {
  const std::vector<int>& host_of = topology.host_of;
  const auto ranks = static_cast<int>(host_of.size());
  NodeGroups node_groups;
  node_groups.count = topology.hosts;
  node_groups.size = ranks / std::max(topology.hosts, 1);
  if (node_groups.count < 2 || node_groups.size < 2) {
    return std::nullopt;
  }
  for (int host = 0; host < topology.hosts; ++host) {
    if (std::count(host_of.begin(), host_of.end(), host) != node_groups.size) {
      return std::nullopt;
    }
  }
  node_groups.mine = HostOf(topology, rank);
  // Hosts are numbered in the order of their first rank.
  node_groups.consecutive = std::is_sorted(host_of.begin(), host_of.end());
  node_groups.inside = topology.Local(rank);
  node_groups.across = topology.Across(rank);
  return node_groups;
}

int NodeGroups::AcrossOf(const Topology& topology, int rank) const {
  const auto found = std::find_if(across.ranks.begin(), across.ranks.end(), [&](int one) {
    return HostOf(topology, one) == HostOf(topology, rank);
  });
  return static_cast<int>(found - across.ranks.begin());
}

}  // namespace entrain
