// How stale a layer's pseudo-gradient is when it is applied, behind further steps: the gap between the anchor it was measured
// from and the one it changes, in steps of the usual length (Barkai et al., "Gap-Aware Mitigation of Gradient Staleness", arXiv
// 1909.10802; CO2, arXiv 2401.16265, divides the outer step by such a gap). Here, by layer,
//
//   Lambda = 1 + ||a - a_then|| / C,   C the mean length of the layer's outer steps so far
//
// where a_then is one outer step before a: replicas measure from the anchor that they began their steps with, and what they send
// comes back when the exchange before has been merged. Before the first outer step there is no gap: 1.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/checkpoint/state_visitor.h"

namespace entrain {

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
  // The layer's anchor has moved this far; the same on all ranks that hold parts of it.
  void Moved(int layer, double length) {
    const auto at = static_cast<size_t>(layer);
    last_[at] = length;
    sum_[at] += length;
    ++steps_[at];
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

}  // namespace entrain
