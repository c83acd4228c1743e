// The state that EDiT keeps on each rank in addition to the parameters. The state consists of the
// anchor a, on which all replicas agreed last, and the arrays of the outer optimizer (sgd: its
// momentum b; adamw: two moments). All arrays are f32 and cover only the layers that train. If
// these layers have P parameters in M shards, each array takes 4 P / M bytes.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/kernels/array_hash.h"
#include "lib/memory/buffer.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class Anchors {
 public:
  // `slab` must outlive this object.
  explicit Anchors(const Slab& slab);

  // Copies the parameters `live` to the anchor, and creates `outer_arrays` arrays of zeros. Sets
  // the anchor's padding to zero. Does not seal the anchors.
  absl::Status Create(const LayerArrays& live, int outer_arrays);
  void SealAll();
  void Drop();
  bool exist() const { return exist_; }
  // Returns the layer's shard in the anchor, or null if the anchor does not exist.
  float* anchor(int layer) { return Part(anchor_, layer); }
  const float* anchor(int layer) const { return Part(anchor_, layer); }
  // Returns the layer's shard in one array of the outer optimizer.
  float* outer(int array, int layer) const {
    return Part(outer_[static_cast<size_t>(array)], layer);
  }
  int outer_arrays() const { return static_cast<int>(outer_.size()); }

  // Stores the hash of the layer's anchor. Must be called after each change of the anchor.
  void Seal(int layer);
  // Does the same with the HashArray of the whole shard with its padding, which the caller has
  // computed.
  void Seal(int layer, uint64_t hash) { seals_[static_cast<size_t>(layer)] = hash; }
  // Returns the hash that Seal has stored last.
  uint64_t seal(int layer) const { return seals_[static_cast<size_t>(layer)]; }
  // Computes the hash of the layer's anchor in memory.
  uint64_t HashOf(int layer) const;
  // Visits the arrays that a checkpoint contains. A caller that changes them must seal all layers
  // afterwards.
  void VisitState(StateVisitor& visitor);
  // Returns a hash of the hashes that Seal has stored for all layers, or 0 if there are no anchors.
  // The value must be equal on all ranks of a sync group.
  uint64_t checksum() const;

 private:
  float* Part(const OwnedBuffer& array, int layer) const;

  const Slab& slab_;
  std::vector<int64_t> offsets_;  // by layer: start of its shard in each array
  int64_t count_ = 0;             // elements of each array
  OwnedBuffer anchor_;            // this array and those of outer_ cover all layers that train
  std::vector<OwnedBuffer> outer_;
  bool exist_ = false;
  std::vector<uint64_t> seals_;  // by layer
};

}  // namespace entrain
