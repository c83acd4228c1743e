// Groups the ranks by host, for hierarchical algorithms (composed.h). Numbers the hosts from 0, in
// the order of their first ranks. The caller passes one number per rank. Equal numbers mean the
// same host, and the values mean nothing else.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

#include "collectives/draft.h"

namespace entrain::composed {

struct Hosts {
  explicit Hosts(absl::Span<const int> numbers);

  int count() const { return static_cast<int>(ranks.size()); }
  const Parts& RanksOn(int host) const { return ranks[static_cast<size_t>(host)]; }
  int SizeOf(int host) const { return static_cast<int>(RanksOn(host).size()); }
  int HostOf(int rank) const { return host_of[static_cast<size_t>(rank)]; }
  int PlaceOf(int rank) const { return place_of[static_cast<size_t>(rank)]; }
  Group Local(int rank) const { return {RanksOn(HostOf(rank)), PlaceOf(rank)}; }

  std::vector<Parts> ranks;   // by host
  std::vector<int> host_of;   // by rank
  std::vector<int> place_of;  // by rank: position on its host
};

}  // namespace entrain::composed
