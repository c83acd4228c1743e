// A model as one flat array cut into layers, and each layer into the shards of a group.
//
//   layer 0   |- p_0 -|- p_0 -|- p_0 -|0        P_l elements, padded with zeros to M p_l,
//   layer 1   |-- p_1 --|-- p_1 --|-- p_1 --|   p_l = ceil(P_l / M); here M = 3
//                        \        /
//   slab of slot 1  [ p_0 | p_1 ]               what one rank keeps: its shards, one after the
//   other
//
// A value; the same on every rank but for what depends on the slot.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

// A tensor of a layer, cut along its first dimension into M chunks of ceil(rows / M) rows, the last of them shorter or empty.
struct SlabSegment {
  int64_t count = 0, rows = 0;
};

// Elements of a layer that follow each other in a shard of it.
struct SlabPiece {
  int64_t at = 0;     // in the shard
  int64_t first = 0;  // in the layer
  int64_t count = 0;
};

// All in elements.
struct SlabLayer {
  int64_t full = 0;    // P_l
  int64_t padded = 0;  // M p_l
  int64_t shard = 0;   // p_l
  int64_t first = 0;   // where this slot's shard begins in the padded layer: m p_l
  int64_t valid = 0;   // this slot's shard up to its last element that is not padding
  int64_t offset = 0;  // where the shard begins in the slab
  bool frozen = false;
  bool replicated = false;  // the ranks along the tensor axis hold the same
  // What of the shard is not padding, in order: one piece at most, or one of each segment.
  std::vector<SlabPiece> pieces;
  // Has parameters that change: gradients, an anchor, a part in exchanges.
  bool trains() const { return full > 0 && !frozen; }
};

class Slab {
 public:
  // For slot `slot` of `slots`. `frozen`: by layer, not 0 where nothing trains; empty: all train.
  // `replicated`: likewise. A layer may have no elements, a model may not. `segments`: by layer, what
  // it is made of, so that its shard is their chunks one after the other, each padded to ceil(rows / M) rows; empty: each
  // layer is cut as a whole.
  static absl::StatusOr<Slab> Make(absl::Span<const int64_t> layer_counts, int slots, int slot,
                                   absl::Span<const uint8_t> frozen = {},
                                   absl::Span<const uint8_t> replicated = {},
                                   absl::Span<const std::vector<SlabSegment>> segments = {});

  int layers() const { return static_cast<int>(layers_.size()); }
  const SlabLayer& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // The layers that train, in order.
  const std::vector<int>& training() const { return training_; }
  // Elements of the slab: the sum of p_l.
  int64_t count() const { return count_; }
  int slots() const { return slots_; }
  int slot() const { return slot_; }
  // The layer with the most elements, padded.
  int largest_layer() const;
  const SlabLayer& largest() const { return layer(largest_layer()); }
  // Its elements, padded.
  int64_t largest_padded() const { return largest().padded; }

 private:
  absl::Status Cut(absl::Span<const SlabSegment> segments, SlabLayer* layer) const;
  std::vector<SlabLayer> layers_;
  std::vector<int> training_;
  int64_t count_ = 0;
  int slots_ = 1, slot_ = 0;
};

}  // namespace entrain
