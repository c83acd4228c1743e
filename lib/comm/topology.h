// The hosts of the ranks of a communicator. The value is equal on every rank.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "collectives/spec.h"

namespace entrain {

struct Topology {
  // By rank: the number of its host. Hosts are numbered in the order of their first ranks.
  std::vector<int> host_of;
  int hosts = 0;

  // `host_ids`: the host ids that the ranks published.
  static Topology FromHostIds(absl::Span<const std::string> host_ids);
  // Returns the ranks of `rank`'s host, in increasing order.
  Group Local(int rank) const;
  // Returns one rank of each host: the rank that has the same place among the ranks of its host as
  // `rank` has on its own host. Leaves out the hosts that have no such rank.
  Group Across(int rank) const;
};

}  // namespace entrain
