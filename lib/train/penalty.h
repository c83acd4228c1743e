// Computes the weights of replicas from their pseudo-gradient norms, and the clip factor. Pure
// functions in double, so that every rank computes the same bits.
//
// A replica that is rejected for a layer, or absent from the exchange, gets weight zero. The others
// share the whole weight.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace entrain {

enum class Weighting {
  kUniform,  // 1 / accepted
  kSum,
  kSoftmax  // softmax(-G / T): replicas that moved further weigh less
};

struct Weighing {
  Weighting kind = Weighting::kUniform;
  double temperature = 1;  // T > 0, for kSoftmax
  // r, in [0, 1]. The weight of a replica is (1 - r) times its weight by `kind` plus r times its
  // share of the training since the last exchange.
  double step_ratio = 0;
  // True: weights are as in the published code. The divisor also counts the rejected replicas.
  // Uniform weights are mixed with the shares of steps before the weights are normalised.
  bool compat = false;
};

// A contribution with a larger norm is treated as if it were not finite. So neither the sum of the
// accepted contributions nor the square of this sum in an outer optimizer overflows f32.
constexpr double kLargestNorm = 1e18;

// One replica's contribution to an exchange of one layer.
struct Candidate {
  double norm = 0;        // G; rejected if not finite, or above kLargestNorm
  bool rejected = false;  // rejected by the anomaly detector
  bool absent = false;    // brings no delta
  double trained = 0;     // steps, or tokens, since the last exchange
  // These two fields change the weight before weights are normalised.
  int64_t late = 0;  // number of rounds; the weight is divided by 1 + late
  double grown = 1;  // factor of the weight, in (0, 1]; below 1 only for a newcomer

  bool accepted() const;
};

struct Verdict {
  std::vector<double> weights;  // by replica; 0 if not accepted
  int accepted = 0;             // 0: roll back
  int brought = 0;              // replicas that bring a delta, accepted or not
};
// Returns (1 - r) w + r s over the accepted replicas, with w of `kind` and s the replica's share of
// the training. If no replica has trained, all shares are equal.
Verdict Weigh(const Weighing& how, absl::Span<const Candidate> brought);

// Returns beta = min(1, phi / (norm + 1e-6)), the factor that reduces a vector of this norm to norm
// phi.
double ClipFactor(double norm, double phi);

}  // namespace entrain
