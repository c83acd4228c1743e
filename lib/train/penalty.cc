#include "lib/train/penalty.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace entrain {

Verdict Weigh(Weighting weighting, double temperature, absl::Span<const double> norms) {
  Verdict verdict;
  verdict.weights.assign(norms.size(), 0.0);
  double least = std::numeric_limits<double>::infinity();
  for (const double norm : norms) {
    if (std::isfinite(norm)) {
      ++verdict.accepted;
      least = std::min(least, norm);
    }
  }
  double total = 0;
  for (size_t n = 0; n < norms.size(); ++n) {
    if (std::isfinite(norms[n])) {
      // Relative to the smallest norm, so that one exponential is 1 and the total cannot vanish.
      verdict.weights[n] =
          weighting == Weighting::kSoftmax ? std::exp((least - norms[n]) / temperature) : 1.0;
      total += verdict.weights[n];
    }
  }
  if (weighting != Weighting::kSum && total > 0) {
    for (double& weight : verdict.weights) {
      weight /= total;
    }
  }
  return verdict;
}

double ClipFactor(double norm, double phi) {
  return std::min(1.0, phi / (norm + 1e-6));
}

}  // namespace entrain
