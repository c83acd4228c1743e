#include "lib/train/penalty.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace entrain {
namespace {

void Normalise(std::vector<double>* weights) {
  double total = 0;
  for (const double weight : *weights) {
    total += weight;
  }
  for (double& weight : *weights) {
    weight = total > 0 ? weight / total : 0;
  }
}

// exp((least - G) / T) of the accepted: relative to the smallest norm, so that one is 1 and the sum
// cannot vanish.
std::vector<double> Exponentials(double temperature, absl::Span<const Candidate> brought) {
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& one : brought) {
    if (one.accepted()) {
      least = std::min(least, one.norm);
    }
  }
  std::vector<double> result;
  for (const Candidate& one : brought) {
    result.push_back(one.accepted() ? std::exp((least - one.norm) / temperature) : 0);
  }
  return result;
}

// Each replica's share of all that was trained; `all`: the rejected count too.
std::vector<double> Shares(absl::Span<const Candidate> brought, bool all) {
  std::vector<double> shares;
  double total = 0;
  for (const Candidate& one : brought) {
    shares.push_back(all || one.accepted() ? one.trained : 0);
    total += shares.back();
  }
  for (size_t n = 0; total == 0 && n < shares.size(); ++n) {
    shares[n] = all || brought[n].accepted() ? 1 : 0;
  }
  Normalise(&shares);
  return shares;
}

}  // namespace

bool Candidate::accepted() const {
  return !rejected && !absent && std::isfinite(norm);
}

Verdict Weigh(const Weighing& how, absl::Span<const Candidate> brought) {
  Verdict verdict;
  const bool softmax = how.kind == Weighting::kSoftmax;
  std::vector<double> weights;
  for (const Candidate& one : brought) {
    verdict.accepted += one.accepted() ? 1 : 0;
    weights.push_back(how.compat || one.accepted() ? 1 : 0);
  }
  if (softmax) {
    weights = Exponentials(how.temperature, brought);
  }
  const bool normalised = softmax || (how.kind == Weighting::kUniform && !how.compat);
  if (normalised) {
    Normalise(&weights);
  }
  if (how.step_ratio > 0) {
    const std::vector<double> shares = Shares(brought, how.compat);
    for (size_t n = 0; n < weights.size(); ++n) {
      weights[n] = (1 - how.step_ratio) * weights[n] + how.step_ratio * shares[n];
    }
  }
  if (how.kind == Weighting::kUniform && how.compat) {
    Normalise(&weights);
  }
  for (size_t n = 0; n < weights.size(); ++n) {
    if (!brought[n].accepted()) {
      weights[n] = 0;  // in compat after it has counted
    }
  }
  verdict.weights = std::move(weights);
  return verdict;
}

double ClipFactor(double norm, double phi) {
  return std::min(1.0, phi / (norm + 1e-6));
}

}  // namespace entrain
