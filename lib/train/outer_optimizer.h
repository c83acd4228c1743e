// What makes the next anchor of the combined pseudo-gradient, and publishes it: sgd in one fused pass, a rule of lib/optim, the
// caller's own function, or a plain step of length one.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/optim/optimizer.h"
#include "lib/train/anchors.h"
#include "lib/train/edit_options.h"
#include "lib/train/slab.h"

namespace entrain {

class OuterOptimizer {
 public:
  // `options` have been checked.
  OuterOptimizer(const Slab& slab, const EditOptions& options);

  // What changes a step of sgd.
  struct Scales {
    double gradient = 1;  // beta
    double momentum = 1;  // of sgd's mu: for clipping b
  };
  // g ← beta mean; a ← a step against g, and sealed; live ← a. `mean` is used up. Layers whose part
  // here is all padding have no elements, and count their steps all the same. kAborted: the caller's own function failed;
  // then nothing is published.
  absl::Status Step(int layer, float* mean, const Scales& scales, Anchors* anchors, float* live);
  void VisitState(StateVisitor& visitor) {
    visitor.Array("outer/steps", Holder::kAll, DType::kI64, steps_.data(),
                  static_cast<int64_t>(steps_.size()));
  }
  // Arrays as long as the anchors that the optimizer keeps: b of sgd with momentum; the state of a rule of lib/optim.
  int arrays() const;
  // Steps that the layer has taken.
  int64_t steps(int layer) const { return steps_[static_cast<size_t>(layer)]; }

 private:
  // A run of elements that stays in the cache for all that is done to it; on a device, all.
  struct Piece {
    float *mean, *anchor, *outer[2], *live;
    int64_t count;
  };
  Piece PieceOf(int layer, int64_t first, float* mean, Anchors* anchors, float* live) const;
  void Sgd(const Piece& piece, const Scales& scales) const;
  void StepByRule(const Piece& piece, float beta, int64_t step) const;

  const Slab& slab_;
  const EditOptions options_;
  const std::unique_ptr<Optimizer> rule_;  // null: sgd, the plain step or the caller's function
  std::vector<int64_t> steps_;             // by layer
};

}  // namespace entrain
