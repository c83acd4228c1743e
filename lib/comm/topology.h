// The ranks of a communicator, by host. The value is equal on every rank.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "collectives/spec.h"

namespace entrain {

struct Topology {
  std::vector<int> host_of;  // rank -> host number, hosts numbered in the order of their first rank
  int hosts = 0;

  // `host_ids`: the host ids that the ranks published.
  static Topology FromHostIds(absl::Span<const std::string> host_ids);
  // Returns the ranks of `rank`'s host, in order.
  Group Local(int rank) const;
  // Returns the ranks that have `rank`'s place on their hosts: one rank for each host that has such
  // a place.
  Group Across(int rank) const;
};

}  // namespace entrain
