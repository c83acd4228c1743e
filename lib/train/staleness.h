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

}  // namespace entrain
