// The node groups of a communicator. The ranks of one host form a group, because they reach each
// other on a shorter path than other ranks. A plain value type. It is computed from values that are
// equal on all ranks.
#pragma once

#include <optional>

#include "collectives/spec.h"
#include "lib/comm/topology.h"

namespace entrain {

struct NodeGroups {
  int count = 0;             // at least 2
  int size = 0;              // ranks of each group, at least 2
  int mine = 0;              // number of this rank's group
  bool consecutive = false;  // the ranks of each group are consecutive
  Group inside;              // this rank's group; a rank's index in its group is its place
  Group across;              // the ranks with this rank's place, one per group, in rank order

  // Returns nullopt if there is only one host, if a host has only one rank, or if hosts have
  // different numbers of ranks.
  static std::optional<NodeGroups> Of(const Topology& topology, int rank);
  // Returns the index in `across` of the node group of a rank.
  int AcrossOf(const Topology& topology, int rank) const;
};

}  // namespace entrain
