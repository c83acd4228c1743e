// A readable exchange of EDiT in double, with the options of Weighed(): layers are exchanged one by
// one, each between the replicas that are given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/train/replicas.h"

namespace entrain {

class EditReference {
 public:
  explicit EditReference(const std::vector<int64_t>& layer_counts) {
    for (size_t l = 0; l < layer_counts.size(); ++l) {
      anchors_.emplace_back();
      for (int64_t i = 0; i < layer_counts[l]; ++i) {
        anchors_.back().push_back(Replica::Initial(static_cast<int>(l), i));
      }
      momenta_.emplace_back(anchors_.back().size(), 0.0);
    }
  }

  // Makes an exchange in which every replica has moved from the anchor by `drift`: theta = a +
  // drift, so Delta = -drift. `grown`: factors of the weights, f in train.h.
  void Exchange(
      int layer, const std::vector<int>& replicas,
      const std::function<double(int replica, int64_t element)>& drift,
      const std::function<double(int replica)>& grown = [](int) { return 1; }) {
    std::vector<double>& a = anchors_[static_cast<size_t>(layer)];
    std::vector<double>& b = momenta_[static_cast<size_t>(layer)];
    std::vector<double> weights;
    double total = 0;
    for (const int replica : replicas) {
      double square = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        const double d = drift(replica, static_cast<int64_t>(i));
        square += d * d;
      }
      weights.push_back(grown(replica) * std::exp(-std::sqrt(square)));
      total += weights.back();
    }
    std::vector<double> mean(a.size(), 0.0);
    double square = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t n = 0; n < replicas.size(); ++n) {
        mean[i] -= weights[n] / total * drift(replicas[n], static_cast<int64_t>(i));
      }
      square += mean[i] * mean[i];
    }
    const double clip = std::min(1.0, 0.8 / (std::sqrt(square) + 1e-6));
    for (size_t i = 0; i < a.size(); ++i) {
      const double g = clip * mean[i];
      b[i] = 0.8 * b[i] + g;
      a[i] -= 0.7 * (g + 0.8 * b[i]);
    }
  }

  const std::vector<double>& anchor(int layer) const {
    return anchors_[static_cast<size_t>(layer)];
  }

 private:
  std::vector<std::vector<double>> anchors_, momenta_;  // by layer
};

}  // namespace entrain
