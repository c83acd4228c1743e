// Which ranks share a host. A value, the same on every rank.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "collectives/spec.h"

namespace entrain {

struct Topology {
  std::vector<int> host_of;  // rank -> host number, hosts numbered in the order of their first rank
  int hosts = 0;

  // From the host ids that the ranks published.
  static Topology FromHostIds(absl::Span<const std::string> host_ids);
  // The ranks of `rank`'s host, in order.
  Group Local(int rank) const;
  // The ranks that have `rank`'s place on their hosts, one a host that has such a place.
  Group Across(int rank) const;
};

}  // namespace entrain
