#include "lib/comm/plan/topology.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace entrain {

Topology Topology::FromHostIds(absl::Span<const std::string> host_ids) {
  Topology topology;
  absl::flat_hash_map<std::string, int> number;
  for (const std::string& id : host_ids) {
    const auto [entry, added] = number.try_emplace(id, topology.hosts);
    topology.hosts += added ? 1 : 0;
    topology.host_of.push_back(entry->second);
  }
  return topology;
}

Group Topology::Local(int rank) const {
  Group group;
  for (int r = 0; r < static_cast<int>(host_of.size()); ++r) {
    if (host_of[static_cast<size_t>(r)] == host_of[static_cast<size_t>(rank)]) {
      if (r == rank) {
        group.me = group.size();
      }
      group.ranks.push_back(r);
    }
  }
  return group;
}

Group Topology::Across(int rank) const {
  const int place = Local(rank).me;
  std::vector<int> seen(static_cast<size_t>(hosts), 0);
  Group group;
  for (int r = 0; r < static_cast<int>(host_of.size()); ++r) {
    if (seen[static_cast<size_t>(host_of[static_cast<size_t>(r)])]++ == place) {
      if (r == rank) {
        group.me = group.size();
      }
      group.ranks.push_back(r);
    }
  }
  return group;
}

}  // namespace entrain
