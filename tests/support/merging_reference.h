// Weighted and task-arithmetic (gta) reductions, in their plainest form, in double: sparsify,
// weigh, elect, mask, normalize, sum. Handles one element after the other, without shortcuts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lib/base/merging.h"

namespace entrain {

using Values = std::vector<double>;

// Returns x with only its k = floor(density * size) largest magnitudes. Among equal magnitudes the
// first are kept.
inline Values LargestOf(const Values& x, double density) {
  const auto k = static_cast<std::ptrdiff_t>(density * static_cast<double>(x.size()));
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  Values kept(x.size());
  std::for_each(order.begin(), order.begin() + k, [&](size_t i) { kept[i] = x[i]; });
  return kept;
}

inline int SignOf(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

// Returns the sign that these products elect. `products` has one product for each rank.
inline int ElectedBy(Consensus consensus, const std::vector<double>& products) {
  double total = 0;
  for (const double product : products) {
    total += consensus == Consensus::kCount ? SignOf(product) : product;
  }
  return total >= 0 ? 1 : -1;
}

// Returns the reduction of `x`, the contributions in rank order. A rank with weight 0 is ignored.
inline Values MergedReference(const Merging& merging, const std::vector<Values>& x) {
  Values result(x.empty() ? 0 : x[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    std::vector<double> weights, products;
    for (size_t r = 0; r < x.size(); ++r) {
      const double weight = merging.weights.empty() ? 1 : merging.weights[r];
      if (weight != 0) {
        weights.push_back(weight);
        products.push_back(weight * x[r][i]);
      }
    }
    const int elected = ElectedBy(merging.consensus, products);
    double sum = 0, divisor = 0;
    for (size_t j = 0; j < products.size(); ++j) {
      if (merging.consensus == Consensus::kNone || SignOf(products[j]) == elected) {
        sum += products[j];
        divisor += weights[j];
      }
    }
    const bool divides = merging.normalize && std::abs(divisor) >= kLeastDivisor;
    result[i] = divides ? sum / divisor : sum;
  }
  return result;
}

}  // namespace entrain
