// The statistics of all measuring programs: the median (for an even number of values, the upper one
// of the two in the middle), the least, the greatest, and percentiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace entrain::perf {

class Sample {
 public:
  // `values` must not be empty.
  explicit Sample(std::vector<double> values) : values_(std::move(values)) {
    std::sort(values_.begin(), values_.end());
  }
  double least() const { return values_.front(); }
  double most() const { return values_.back(); }
  double median() const { return values_[values_.size() / 2]; }
  // Returns the percentile: at least `percent` % (0 to 100) of the values are less than or equal to
  // it.
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
