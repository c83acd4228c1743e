// Describes how a model is cut into layers, and each layer into the shards of a group.
//
//   layer 0   |- p_0 -|- p_0 -|- p_0 -|0        P_l elements, padded with zeros to M p_l,
//   layer 1   |-- p_1 --|-- p_1 --|-- p_1 --|   p_l = ceil(P_l / M); here M = 3
//                        \        /
//   slab of slot 1  [ p_0 | p_1 ]               the shards that one rank keeps, one after the other
//
// A Slab is a plain value. It is the same on every rank, except for the fields that depend on the
// slot.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

// A tensor of a layer. A tensor is cut along its first dimension into M chunks of ceil(rows / M)
// rows. The last chunks may be shorter or empty.
struct SlabSegment {
  int64_t count = 0, rows = 0;
};

// Elements that are adjacent both in a layer and in a shard.
struct SlabPiece {
  int64_t at = 0;     // position in the shard
  int64_t first = 0;  // position in the layer
  int64_t count = 0;
};

// Counts are in elements.
struct SlabLayer {
  int64_t full = 0;    // P_l
  int64_t padded = 0;  // M p_l
  int64_t shard = 0;   // p_l
  int64_t first = 0;   // start of this slot's shard in the padded layer: m p_l
  int64_t valid = 0;   // elements of this slot's shard before its final padding
  int64_t offset = 0;  // start of the shard in the slab
  bool frozen = false;
  bool replicated = false;  // equal on all ranks along the tensor axis
  // The parts of the shard that are not padding, in order. A layer without segments has at most one
  // piece. A layer with segments has at most one piece for each segment.
  std::vector<SlabPiece> pieces;
  // Returns true if the layer has parameters that change. Only such a layer has gradients and an
  // anchor, and is exchanged.
  bool trains() const { return full > 0 && !frozen; }
};

class Slab {
 public:
  // Makes the slab for slot `slot` of `slots`. A layer may have no elements, but the model must
  // have some.
  //
  // `frozen` has a nonzero value for each layer in which nothing trains; empty: all layers train.
  // `replicated` has a nonzero value for each layer that is equal along the tensor axis; empty:
  // there is none. `segments` lists the tensors of each layer. A shard then consists of one chunk
  // of each tensor, one after the other, each padded to ceil(rows / M) rows. If `segments` is
  // empty, each layer is cut as a whole.
  static absl::StatusOr<Slab> Make(absl::Span<const int64_t> layer_counts, int slots, int slot,
                                   absl::Span<const uint8_t> frozen = {},
                                   absl::Span<const uint8_t> replicated = {},
                                   absl::Span<const std::vector<SlabSegment>> segments = {});

  int layers() const { return static_cast<int>(layers_.size()); }
  const SlabLayer& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // Returns the layers that train, in order.
  const std::vector<int>& training() const { return training_; }
  // Returns the number of elements in the slab: the sum of p_l.
  int64_t count() const { return count_; }
  int slots() const { return slots_; }
  int slot() const { return slot_; }
  // Returns the layer with the most padded elements.
  int largest_layer() const;
  const SlabLayer& largest() const { return layer(largest_layer()); }
  // Returns the number of padded elements of the largest layer.
  int64_t largest_padded() const { return largest().padded; }

 private:
  absl::Status Cut(absl::Span<const SlabSegment> segments, SlabLayer* layer) const;
  std::vector<SlabLayer> layers_;
  std::vector<int> training_;
  int64_t count_ = 0;
  int slots_ = 1, slot_ = 0;
};

}  // namespace entrain
