// Decides which anchor of a layer is right if the anchors of the replicas differ. The functions are
// pure. All ranks of a sync group have the same hashes, so they reach the same decision.
//
//              sealed   in memory
//   replica 0  A        A          A is right: more than half have sealed A, and replica 0 has it
//   replica 1  A        B          its memory has changed since its last exchange
//   replica 2  C        C          its last outer step had another result
//
// The pass that writes an anchor also hashes it. This hash is the sealed hash (Anchors::Seal). The
// vote counts sealed hashes. Therefore two replicas are enough to repair an anchor that has changed
// in the memory of one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace entrain {

// The hashes of one layer's anchor on one replica. Ranks send this struct as it is in memory.
struct AnchorHash {
  uint64_t memory = 0;  // hash of the anchor in memory, computed for this vote
  uint64_t sealed = 0;  // hash of the anchor when it was written
};

struct AnchorVote {
  uint64_t right = 0;  // hash of the right anchor
  // The index of the first replica that has the right anchor in memory. -1: more than half of the
  // replicas have no common sealed hash, or no replica has an anchor with that hash in memory.
  int from = -1;
  std::vector<int> wrong;  // ascending indices of the replicas without the right anchor
};

// Returns true if all replicas have the same anchor in memory. `hashes` is indexed by replica, also
// in the functions below.
bool SameAnchor(absl::Span<const AnchorHash> hashes);
AnchorVote Vote(absl::Span<const AnchorHash> hashes);
// Returns a text such as "layer 3: checksum ... on replicas 0 and 2, ... on replica 1 (changed in
// memory since its last exchange)". `replicas` has the numbers of the replicas.
std::string DescribeAnchors(int layer, absl::Span<const AnchorHash> hashes,
                            absl::Span<const int> replicas);

}  // namespace entrain
