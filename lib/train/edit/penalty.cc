#include "lib/train/edit/penalty.h"

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

// Returns 1 for each accepted replica and 0 for the others. With `all`, returns 1 for every
// replica.
std::vector<double> Ones(absl::Span<const Candidate> brought, bool all) {
  std::vector<double> ones;
  for (const Candidate& one : brought) {
    ones.push_back(all || one.accepted() ? 1 : 0);
  }
  return ones;
}

// Returns w_n = 1 / accepted.
std::vector<double> UniformWeights(absl::Span<const Candidate> brought) {
  std::vector<double> weights = Ones(brought, /*all=*/false);
  Normalise(&weights);
  return weights;
}

// Returns w_n = exp(-G_n / T) / sum over the accepted m of exp(-G_m / T)   (eq. 2). Numerator and
// sum are computed relative to the smallest norm, so that one exponential is 1 and the sum cannot
// vanish.
std::vector<double> SoftmaxWeights(double temperature, absl::Span<const Candidate> brought) {
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& one : brought) {
    if (one.accepted()) {
      least = std::min(least, one.norm);
    }
  }
  std::vector<double> weights;
  for (const Candidate& one : brought) {
    weights.push_back(one.accepted() ? std::exp((least - one.norm) / temperature) : 0);
  }
  Normalise(&weights);
  return weights;
}

// Returns each replica's share of the training of all replicas. The share of a rejected replica is
// 0, unless `all` is true.
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

// Computes w ← (1 - r) w + r s, with s the shares.
void MixWithShares(double ratio, const std::vector<double>& shares, std::vector<double>* weights) {
  for (size_t n = 0; ratio > 0 && n < weights->size(); ++n) {
    (*weights)[n] = (1 - ratio) * (*weights)[n] + ratio * shares[n];
  }
}

std::vector<double> WeightsOf(const Weighing& how, absl::Span<const Candidate> brought) {
  std::vector<double> weights = how.kind == Weighting::kSoftmax
                                    ? SoftmaxWeights(how.temperature, brought)
                                : how.kind == Weighting::kUniform ? UniformWeights(brought)
                                                                  : Ones(brought, /*all=*/false);
  MixWithShares(how.step_ratio, Shares(brought, /*all=*/false), &weights);
  return weights;
}

// Implements Weighing::compat: computes weights in which rejected replicas count too. Weigh then
// sets the weights of rejected replicas to zero.
std::vector<double> AsPublished(const Weighing& how, absl::Span<const Candidate> brought) {
  std::vector<double> weights = how.kind == Weighting::kSoftmax
                                    ? SoftmaxWeights(how.temperature, brought)
                                    : Ones(brought, /*all=*/true);
  MixWithShares(how.step_ratio, Shares(brought, /*all=*/true), &weights);
  if (how.kind == Weighting::kUniform) {
    Normalise(&weights);
  }
  return weights;
}

// Applies Candidate::late and Candidate::grown. If no replica is late or a newcomer, changes no
// bit.
void WeighDown(const Weighing& how, absl::Span<const Candidate> brought,
               std::vector<double>* weights) {
  bool any = false;
  for (size_t n = 0; n < brought.size(); ++n) {
    if (brought[n].late > 0 || brought[n].grown < 1) {
      (*weights)[n] *= brought[n].grown;
      (*weights)[n] /= static_cast<double>(1 + brought[n].late);
      any = true;
    }
  }
  if (any && how.kind != Weighting::kSum) {
    Normalise(weights);
  }
}

}  // namespace

bool Candidate::accepted() const {
  return !rejected && !absent && std::abs(norm) <= kLargestNorm;  // false for NaN
}

Verdict Weigh(const Weighing& how, absl::Span<const Candidate> brought) {
  Verdict verdict;
  verdict.weights = how.compat ? AsPublished(how, brought) : WeightsOf(how, brought);
  WeighDown(how, brought, &verdict.weights);
  for (size_t n = 0; n < brought.size(); ++n) {
    verdict.brought += brought[n].absent ? 0 : 1;
    if (brought[n].accepted()) {
      ++verdict.accepted;
    } else {
      verdict.weights[n] = 0;
    }
  }
  return verdict;
}

}  // namespace entrain
