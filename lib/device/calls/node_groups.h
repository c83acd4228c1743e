// The ranks by node group: those of one host, which reach each other by a shorter way than the rest. A value, from what all
// ranks know alike.
#pragma once

#include <optional>

#include "collectives/spec.h"
#include "lib/comm/topology.h"

namespace entrain {

struct NodeGroups {
  int count = 0;             // at least 2
  int size = 0;              // ranks of each, at least 2
  int mine = 0;              // the number of this rank's
  bool consecutive = false;  // the ranks of each follow each other
  Group inside;              // this rank's; its ranks' places are those in it
  Group across;  // the ranks of this rank's place, one of each node group, in rank order

  // nullopt: there is but one host, a host with but one rank, or hosts with more ranks than others.
  static std::optional<NodeGroups> Of(const Topology& topology, int rank);
  // Where in `across` the node group of a rank is.
  int AcrossOf(const Topology& topology, int rank) const;
};

}  // namespace entrain
