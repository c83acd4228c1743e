// Compares the anchors of the replicas (option anchor_check). Keeps the hashes of this rank's
// anchors in memory, and marks the layers whose anchors were repaired.
//
// Thread safety: one thread at a time: the thread that runs Exchange::Judge.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/shard/slab.h"

namespace entrain {

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

class AnchorGuard {
 public:
  // `slab` and `anchors` must outlive this object.
  AnchorGuard(const Slab& slab, const Anchors& anchors, AnchorCheck check);

  // Returns the sum of squares of Delta = a - theta over this rank's shard, where a is the anchor
  // and theta the parameters. Stores the hash of a. In plain averaging there is no anchor. Then
  // returns the sum of squares of theta, which is finite only if theta is finite.
  double Measure(int layer, const float* theta);
  // Returns a checksum of the hashes that Measure has stored for these layers. If the replicas do
  // not compare anchors, returns the checksum of the hashes that Anchors::Seal has stored for all
  // layers.
  uint64_t Checksum(const std::vector<int>& layers) const;
  // Used if there is only one replica. Returns kDataLoss if the hash of an anchor in memory differs
  // from the hash that Anchors::Seal has stored.
  absl::Status CheckSeals(const std::vector<int>& layers) const;
  std::vector<AnchorHash> Hashes(const std::vector<int>& layers) const;
  // Returns true if the replicas compare anchors.
  bool compares() const { return check_ != AnchorCheck::kOff; }
  bool repairs() const { return check_ == AnchorCheck::kRepair; }

  // A layer is distrusted from the repair of its anchor to its next exchange, because this
  // replica's parameters may have been trained from a wrong anchor.
  bool distrusts(int layer) const { return distrusted_[static_cast<size_t>(layer)] != 0; }
  void SetDistrusted(int layer, bool distrusted) {
    distrusted_[static_cast<size_t>(layer)] = distrusted ? 1 : 0;
  }

 private:
  const Slab& slab_;
  const Anchors& anchors_;
  const AnchorCheck check_;
  std::vector<uint64_t> noted_;      // by layer: the hash of the anchor at the last Measure
  std::vector<int32_t> distrusted_;  // by layer
};

}  // namespace entrain
