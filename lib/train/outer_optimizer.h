// The outer step makes the next anchor of the combined pseudo-gradient, and publishes it: sgd in one fused pass, a rule of
// lib/optim, the caller's own function, or a plain step of length one. With the combined pseudo-gradient Delta of a layer, sgd is
//
//   g     <- beta Delta / Lambda             beta: clip_pseudo_grad; Lambda: staleness_penalty (staleness.h); else 1
//   g     <- g + lambda a                    lambda: outer_weight_decay
//   b     <- kappa (mu b + g)                kappa: outer_momentum_clip; else 1. The first step: b is 0 before
//   a     <- a - eta (g + mu b)              outer_nesterov, kappa = 1
//   a     <- a - eta b                       otherwise
//   theta <- a
//
// beta, Lambda and kappa depend on norms of the whole layer only (ScaleOuterStep), so they become two factors before any element is
// touched: with s = kappa beta / Lambda and mu' = kappa mu, b <- mu' b + s Delta. Other optimizers have g <- beta Delta / Lambda and a
// rule of their own.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/optim/optimizer.h"
#include "lib/train/anchors.h"
#include "lib/train/edit_options.h"
#include "lib/train/slab.h"

namespace entrain {

// Factors of one outer step of a layer.
struct OuterScales {
  double clip = 1;       // beta
  double staleness = 1;  // Lambda
  double gradient = 1;   // s = kappa beta / Lambda: of Delta
  double momentum = 1;   // kappa: of sgd's mu
  double length = 0;     // how far the step moves the anchor; with staleness_penalty
};
// `squares`: ||Delta||² of the layer; where sgd has a momentum also ||b||² and ||b - Delta||². `gap`: Lambda with staleness_penalty.
// Pure, in double, so that all ranks come to the same bits.
OuterScales ScaleOuterStep(const EditOptions& options, absl::Span<const double> squares,
                           double gap);

class OuterOptimizer {
 public:
  // `options` have been checked.
  OuterOptimizer(const Slab& slab, const EditOptions& options);

  // The step above with `mean` as Delta; a is sealed; live ← a. `mean` is used up. Layers whose part
  // here is all padding have no elements, and count their steps all the same. kAborted: the caller's own function failed;
  // then nothing is published.
  absl::Status Step(int layer, float* mean, const OuterScales& scales, Anchors* anchors,
                    float* live);
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
  void Sgd(const Piece& piece, const OuterScales& scales) const;
  void StepByRule(const Piece& piece, float scale, int64_t step) const;

  const Slab& slab_;
  const EditOptions options_;
  const std::unique_ptr<Optimizer> rule_;  // null: sgd, the plain step or the caller's function
  std::vector<int64_t> steps_;             // by layer
};

}  // namespace entrain
