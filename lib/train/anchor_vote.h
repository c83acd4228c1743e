// Decides which anchor of a layer is right when the replicas' anchors differ. Pure functions: every
// rank of a sync group has the same hashes and reaches the same decision.
//
//              sealed   in memory
//   replica 0  A        A          A is right: the majority has sealed A; replica 0 has A in memory
//   replica 1  A        B          its memory has changed since its last exchange
//   replica 2  C        C          its last outer step had another result
//
// An anchor is sealed, that is, hashed, by the pass that writes it. The vote counts sealed hashes.
// Therefore two replicas are enough to repair memory that has changed in one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace entrain {

// The hashes of one layer's anchor on one replica. Ranks send this struct as it is in memory.
struct AnchorHash {
  uint64_t memory = 0;  // hash of the anchor as it is in memory now
  uint64_t sealed = 0;
};

struct AnchorVote {
  uint64_t right = 0;
  // The index of the first replica that has the right anchor in memory. -1: no hash was sealed by
  // more than half of the replicas, or no replica has an anchor with that hash in memory.
  int from = -1;
  std::vector<int> wrong;  // indices of the replicas that lack it in memory, ascending
};

// Returns true if all replicas have the same anchor in memory. `hashes` are by replica.
bool SameAnchor(absl::Span<const AnchorHash> hashes);
AnchorVote Vote(absl::Span<const AnchorHash> hashes);
// Returns "layer 3: checksum ... on replicas 0 and 2, ... on replica 1 (changed in memory since its
// last exchange)". `replicas` has the replicas' numbers.
std::string DescribeAnchors(int layer, absl::Span<const AnchorHash> hashes,
                            absl::Span<const int> replicas);

}  // namespace entrain
