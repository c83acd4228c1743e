// What a replica's pseudo-gradient counts for: from the norms of all replicas to weights, and the
// clip factor. Pure, in double, so that every rank comes to the same bits.
//
// A norm that is not finite says that the replica is rejected for this layer: its parameters are
// not finite, or a judge of norms put infinity there. It gets weight zero, and the others share all
// the weight.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace entrain {

enum class Weighting {
  kUniform,  // 1 / accepted
  kSum,      // 1 each
  kSoftmax   // softmax(-G / T): the further a replica strayed, the less it counts
};

struct Verdict {
  std::vector<double> weights;  // by replica; 0 for the rejected
  int accepted = 0;             // 0: roll back
};
// `temperature`: T > 0, used by kSoftmax.
Verdict Weigh(Weighting weighting, double temperature, absl::Span<const double> norms);

// beta = min(1, phi / (norm + 1e-6)): what brings a module of this norm down to phi.
double ClipFactor(double norm, double phi);

}  // namespace entrain
