// Converts a layer's live parameters (theta) from their own type to f32, and back.
//
// If theta is not f32, its f32 values are in memory of this object, and are valid until the next
// call. So each thread needs an object of its own.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/memory/buffer.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class WideTheta {
 public:
  // The arguments must outlive this object.
  WideTheta(const Slab& slab, const LayerArrays& live, const Anchors& anchors)
      : slab_(slab), live_(live), anchors_(anchors) {}

  // Allocates memory if theta is not f32. Must be called before all other functions.
  absl::Status Reserve();

  // Returns the values, in f32, from which the pseudo-gradient of a layer is computed. These are
  // the values of `snapshot`, or of theta if `snapshot` is null.
  //
  // If theta is not f32 and there are anchors, returns a + (theta - rounded a); a is the anchor.
  // This is the anchor plus the change made by training. The pseudo-gradient then contains no
  // rounding error of the anchor, and the anchor keeps all its bits.
  const float* Source(int layer, const float* snapshot);
  // Writes the anchor to `to`, in f32, rounded to the type of theta.
  void RoundAnchor(int layer, float* to);
  // Returns the anchor in f32, rounded to the type of theta.
  const float* RoundedAnchor(int layer);
  // Open returns theta in f32, for changes. Close writes the changes back.
  float* Open(int layer);
  void Close(int layer, const float* theta) const;

 private:
  const Slab& slab_;
  const LayerArrays& live_;
  const Anchors& anchors_;
  // For a theta that is not f32: one shard of theta in f32, one shard of the rounded anchor in f32,
  // and one shard of the rounded anchor in the type of theta.
  OwnedBuffer memory_;
  float *theta_ = nullptr, *anchor_ = nullptr;
  std::byte* rounded_ = nullptr;
};

}  // namespace entrain
