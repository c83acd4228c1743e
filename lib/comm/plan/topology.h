// The hosts of the ranks of a communicator. The value is equal on all ranks.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "collectives/spec.h"

namespace entrain {

struct Topology {
  // By rank: the number of the rank's host. Hosts are numbered in the order of their first ranks.
  std::vector<int> host_of;
  int hosts = 0;

  // `host_ids`: the host ids that the ranks published.
  static Topology FromHostIds(absl::Span<const std::string> host_ids);
  // Returns the ranks of `rank`'s host, in increasing order.
  Group Local(int rank) const;
  // Returns at most one rank of each host. If `rank` is the n-th rank of its host, these are the
  // n-th ranks of all hosts. Hosts with fewer than n ranks are left out.
  Group Across(int rank) const;
};

}  // namespace entrain
