// What a replica's pseudo-gradient counts for: from the norms of all replicas to weights, and the
// clip factor. Pure, in double, so that every rank comes to the same bits.
//
// A replica that is rejected for a layer, or absent from the exchange, gets weight zero, and the
// others share all the weight.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace entrain {

enum class Weighting {
  kUniform,  // 1 / accepted
  kSum,      // 1 each
  kSoftmax   // softmax(-G / T): the further a replica strayed, the less it counts
};

struct Weighing {
  Weighting kind = Weighting::kUniform;
  double temperature = 1;  // T > 0, of kSoftmax
  // r: the share of a weight that follows how much the replica has trained, in [0, 1].
  double step_ratio = 0;
  // As published: the rejected count in the divisor, and uniform weights are mixed with those of
  // steps before either is normalised.
  bool compat = false;
};

// What a replica brings to an exchange of one layer.
struct Candidate {
  double norm = 0;        // G; not finite: rejected
  bool rejected = false;  // by its judge of norms
  bool absent = false;    // has nothing to bring
  double trained = 0;     // steps, or tokens, since the last exchange

  bool accepted() const;
};

struct Verdict {
  std::vector<double> weights;  // by replica; 0 for those that are not accepted
  int accepted = 0;             // 0: roll back
};
// (1 - r) w + r s over the accepted, with w of `kind` and s the replica's share of what was trained;
// if nobody has trained, all shares are alike.
Verdict Weigh(const Weighing& how, absl::Span<const Candidate> brought);

// beta = min(1, phi / (norm + 1e-6)): what brings a module of this norm down to phi.
double ClipFactor(double norm, double phi);

}  // namespace entrain
