// The outer step computes the next anchor from the combined pseudo-gradient and copies this anchor
// to theta. The step is sgd in one fused pass, a rule of lib/optim, the caller's own function, or a
// plain step of length one. With the combined pseudo-gradient Delta of a layer, sgd is
//
//   g     <- beta Delta / Lambda             beta: clip_pseudo_grad; Lambda: staleness_penalty (staleness.h); else 1
//   g     <- g + lambda a                    lambda: outer_weight_decay
//   b     <- kappa (mu b + g)                kappa: outer_momentum_clip; else 1. Before the first step b is 0
//   a     <- a - eta (g + mu b)              outer_nesterov, kappa = 1
//   a     <- a - eta b                       otherwise
//   theta <- a
//
// beta, Lambda and kappa depend only on norms of the whole layer (ScaleOuterStep). They become two
// factors before any element is touched: with s = kappa beta / Lambda and mu' = kappa mu, b <- mu'
// b + s Delta. Other optimizers compute g <- beta Delta / Lambda and apply a rule of their own.
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
  double gradient = 1;   // s = kappa beta / Lambda, a factor of Delta
  double momentum = 1;   // kappa, a factor of sgd's mu
  double length = 0;     // distance that the anchor moves, with staleness_penalty
};
// `squares` holds ||Delta||² of the layer and, if sgd has a momentum, ||b||² and ||b - Delta||².
// `gap` is Lambda with staleness_penalty. A pure function in double, so that all ranks compute the
// same bits.
OuterScales ScaleOuterStep(const EditOptions& options, absl::Span<const double> squares,
                           double gap);

class OuterOptimizer {
 public:
  // `options` have been checked.
  OuterOptimizer(const Slab& slab, const EditOptions& options);

  // Makes the step above with `mean` as Delta, seals a, and copies a to live. Overwrites `mean`.
  // Layers whose shard on this rank is all padding have no elements, but their steps are counted
  // too. Returns kAborted if the caller's function failed; then nothing is published.
  absl::Status Step(int layer, float* mean, const OuterScales& scales, Anchors* anchors,
                    float* live);
  void VisitState(StateVisitor& visitor) {
    visitor.Array("outer/steps", Holder::kAll, DType::kI64, steps_.data(),
                  static_cast<int64_t>(steps_.size()));
  }
  // Returns the number of arrays that the optimizer keeps, each as long as the anchors: b for sgd
  // with momentum, or the state of a rule of lib/optim.
  int arrays() const;
  // Returns the number of outer steps of the layer. SetSteps takes over the number of another rank.
  int64_t steps(int layer) const { return steps_[static_cast<size_t>(layer)]; }
  void SetSteps(int layer, int64_t steps) { steps_[static_cast<size_t>(layer)] = steps; }

 private:
  // Elements that stay in the cache for all passes over them. On a device a piece is the whole
  // layer.
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
