// The statistics of all programs that measure: of the values in order, the one in the middle (of an even number the upper one), the
// first, the last, and percentiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace entrain::perf {

class Sample {
 public:
  // At least one value.
  explicit Sample(std::vector<double> values) : values_(std::move(values)) {
    std::sort(values_.begin(), values_.end());
  }
  double least() const { return values_.front(); }
  double most() const { return values_.back(); }
  double median() const { return values_[values_.size() / 2]; }
  // At least `percent` (0 to 100) of the values are not above it.
  double percentile(size_t percent) const {
    return values_[std::min(values_.size() - 1, values_.size() * percent / 100)];
  }

 private:
  std::vector<double> values_;
};

inline double Median(std::vector<double> values) {
  return Sample(std::move(values)).median();
}

}  // namespace entrain::perf
