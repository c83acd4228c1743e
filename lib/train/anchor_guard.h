// Compares the anchors of the replicas (option anchor_check). Keeps the hashes of this rank's
// anchors in memory, and marks the layers whose anchors were repaired.
//
// Thread safety: one thread at a time: the thread that runs Exchange::Judge.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/train/anchor_vote.h"
#include "lib/train/anchors.h"
#include "lib/train/edit_options.h"
#include "lib/train/slab.h"

namespace entrain {

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
