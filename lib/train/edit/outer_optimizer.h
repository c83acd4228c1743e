// The outer step computes the next anchor a from the combined pseudo-gradient Delta of a layer.
// Then it copies a to the parameters theta. There are four kinds of step: sgd in one fused pass, an
// optimizer of lib/optim, a function of the caller, and a plain step of length one. Sgd is
//
//   g     <- beta Delta / Lambda             beta: clip_pseudo_grad; otherwise 1
//                                            Lambda: staleness_penalty (StalenessGaps); otherwise 1
//   g     <- g + lambda a                    lambda: outer_weight_decay
//   b     <- kappa (mu b + g)                kappa: outer_momentum_clip; otherwise 1
//   a     <- a - eta (g + mu b)              outer_nesterov, kappa = 1
//   a     <- a - eta b                       otherwise
//   theta <- a
//
// beta, Lambda and kappa depend only on norms of the whole layer. So ScaleOuterStep combines them
// into two factors before the step:
//
//   s = kappa beta / Lambda,   mu' = kappa mu,   b <- mu' b + s Delta
//
// Before the first step b is 0. Other optimizers compute g <- beta Delta / Lambda, and then apply
// their own rule to g.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/optim/optimizer.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// The staleness of a layer's pseudo-gradient, if exchanges overlap with further steps. Such a
// pseudo-gradient was measured from an older anchor than the anchor to which it is applied. Its
// staleness is the distance between these two anchors, in steps of the usual length (Barkai et al.,
// "Gap-Aware Mitigation of Gradient Staleness", arXiv 1909.10802). CO2 (arXiv 2401.16265) divides
// the outer step by such a gap. For each layer,
//
//   Lambda = 1 + ||a - a_then|| / C,   C: the mean length of the layer's outer steps so far
//
// where a_then is the anchor one outer step before a. One step is enough: a replica measures from
// the anchor at which it began its steps, and its delta arrives after the previous exchange was
// merged. Before the first outer step there is no gap, and Lambda is 1.
//
// Thread safety: one thread at a time.
class StalenessGaps {
 public:
  explicit StalenessGaps(int layers)
      : last_(static_cast<size_t>(layers), 0),
        sum_(static_cast<size_t>(layers), 0),
        steps_(static_cast<size_t>(layers), 0) {}

  double Gap(int layer) const {
    const auto at = static_cast<size_t>(layer);
    return sum_[at] > 0 ? 1 + last_[at] * static_cast<double>(steps_[at]) / sum_[at] : 1;
  }
  // Records the distance that the layer's anchor has moved. All ranks that hold parts of the layer
  // must record the same distance.
  void Moved(int layer, double length) {
    const auto at = static_cast<size_t>(layer);
    last_[at] = length;
    sum_[at] += length;
    ++steps_[at];
  }
  // The record of a layer. Ranks send this struct as it is in memory.
  struct Record {
    double last = 0, sum = 0;
    int64_t steps = 0;
  };
  Record Get(int layer) const {
    const auto at = static_cast<size_t>(layer);
    return {last_[at], sum_[at], steps_[at]};
  }
  void Set(int layer, const Record& record) {
    const auto at = static_cast<size_t>(layer);
    last_[at] = record.last;
    sum_[at] = record.sum;
    steps_[at] = record.steps;
  }
  void VisitState(StateVisitor& visitor) {
    const auto layers = static_cast<int64_t>(last_.size());
    visitor.Array("staleness/last", Holder::kAll, DType::kF64, last_.data(), layers);
    visitor.Array("staleness/sum", Holder::kAll, DType::kF64, sum_.data(), layers);
    visitor.Array("staleness/steps", Holder::kAll, DType::kI64, steps_.data(), layers);
  }

 private:
  std::vector<double> last_, sum_;
  std::vector<int64_t> steps_;
};

// Factors of one outer step of a layer.
struct OuterScales {
  double clip = 1;       // beta
  double staleness = 1;  // Lambda
  double gradient = 1;   // s = kappa beta / Lambda, a factor of Delta
  double momentum = 1;   // kappa, a factor of sgd's mu
  double length = 0;     // distance that the anchor moves, with staleness_penalty
};
// The hyperparameters of one outer step of a layer: outer_lr and outer_momentum, or what the
// caller's outer_schedule makes of them.
struct OuterRates {
  double lr = 0, momentum = 0;
};
// `squares` holds ||Delta||² of the layer. If sgd has a momentum, `squares` also holds ||b||² and
// ||b - Delta||². `gap` is Lambda, and is used only with staleness_penalty. The function is pure
// and computes in double, so all ranks get the same bits.
OuterScales ScaleOuterStep(const EditOptions& options, const OuterRates& rates,
                           absl::Span<const double> squares, double gap);

class OuterOptimizer {
 public:
  // `options` have been checked.
  OuterOptimizer(const Slab& slab, const EditOptions& options);

  // Returns the hyperparameters of the layer's next step. Returns kAborted if the caller's schedule
  // failed, or returned what is no rate.
  absl::StatusOr<OuterRates> NextRates(int layer) const;
  // Makes the step above with `mean` as Delta. Stores the hash of the new anchor a (Anchors::Seal),
  // and copies a to `live`. Overwrites `mean`. If the layer has no elements on this rank, the step
  // is only counted. Returns kAborted if the caller's function failed; then neither the hash nor
  // `live` has changed.
  absl::Status Step(int layer, float* mean, const OuterRates& rates, const OuterScales& scales,
                    Anchors* anchors, float* live);
  void VisitState(StateVisitor& visitor) {
    visitor.Array("outer/steps", Holder::kAll, DType::kI64, steps_.data(),
                  static_cast<int64_t>(steps_.size()));
  }
  // Returns the number of arrays that the optimizer keeps, each as long as the anchors: b for sgd
  // with momentum, or the state of a rule of lib/optim.
  int arrays() const;
  // Returns the number of outer steps of the layer. SetSteps sets the number to that of another
  // rank.
  int64_t steps(int layer) const { return steps_[static_cast<size_t>(layer)]; }
  void SetSteps(int layer, int64_t steps) { steps_[static_cast<size_t>(layer)] = steps; }

 private:
  // A range of elements that stays in the cache during all passes over it.
  struct Piece {
    float *mean, *anchor, *outer[2], *live;
    int64_t count;
  };
  // Makes the step of the library's own optimizers, for a layer that has elements.
  void StepPieces(int layer, float* mean, const OuterRates& rates, const OuterScales& scales,
                  Anchors* anchors, float* live) const;
  Piece PieceOf(int layer, int64_t first, int64_t count, float* mean, Anchors* anchors,
                float* live) const;
  void Sgd(const Piece& piece, const OuterRates& rates, const OuterScales& scales) const;
  void StepByRule(const Piece& piece, double lr, float scale, int64_t step) const;

  const Slab& slab_;
  const EditOptions options_;
  const std::unique_ptr<Optimizer> rule_;  // null: sgd, the plain step or the caller's function
  std::vector<int64_t> steps_;             // by layer
};

}  // namespace entrain
