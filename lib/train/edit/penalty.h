// Computes the weights of replicas from the norms of their pseudo-gradients, and the clip factor.
// The functions are pure and compute in double, so every rank gets the same bits.
//
// A replica that is rejected for a layer, or absent from the exchange, gets weight 0.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace entrain {

enum class Weighting {
  kUniform,  // 1 / accepted
  kSum,      // 1: the result is a sum
  kSoftmax   // softmax(-G / T): replicas that moved further weigh less
};

struct Weighing {
  Weighting kind = Weighting::kUniform;
  double temperature = 1;  // T > 0, for kSoftmax
  // r, in [0, 1]. The weight of a replica is (1 - r) w + r s. w is its weight by `kind`. s is its
  // share of the training since the last exchange.
  double step_ratio = 0;
  // True: computes weights as the published code does. The divisor also counts the rejected
  // replicas. Uniform weights are mixed with the shares s before the weights are normalised.
  bool compat = false;
};

// A contribution with a larger norm is rejected, like a contribution that is not finite. This limit
// prevents an overflow of f32 in the sum of the accepted contributions. It also prevents an
// overflow in the square of this sum, which an outer optimizer computes.
constexpr double kLargestNorm = 1e18;

// One replica's contribution to an exchange of one layer.
struct Candidate {
  double norm = 0;        // G; rejected if not finite, or above kLargestNorm
  bool rejected = false;  // rejected by the anomaly detector
  bool absent = false;    // has no delta
  double trained = 0;     // steps, or tokens, since the last exchange
  // The following fields change the weight before weights are normalised.
  int64_t late = 0;  // rounds by which the delta is late; divides the weight by 1 + late
  double grown = 1;  // multiplies the weight; in (0, 1], below 1 only for a newcomer

  bool accepted() const;
};

struct Verdict {
  std::vector<double> weights;  // by replica; 0 if not accepted
  int accepted = 0;             // accepted replicas; 0: the layer is rolled back
  int brought = 0;              // replicas that have a delta, accepted or not
};
// Returns the weights of the accepted replicas, (1 - r) w + r s (Weighing::step_ratio). If no
// replica has trained, all shares s are equal.
Verdict Weigh(const Weighing& how, absl::Span<const Candidate> brought);

}  // namespace entrain
