// How the deltas of all replicas become one. In two halves, so that the next layer can begin while
// one travels.
//
// Thread safety: const, any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"

namespace entrain {

class DeltaReducer {
 public:
  virtual ~DeltaReducer() = default;
  // Weighs this rank's `delta` and starts its travel; blocks for nobody. `weights`: by rank of
  // `across`, the same on all; whose is 0 must bring zeros. `across` null: alone. The delta is lent
  // until Finish; the result, in its place, has the same bits on all ranks.
  virtual absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                             absl::Span<float> delta,
                                             const CallOptions& options) const = 0;
  virtual absl::Status Finish(const RefPtr<Work>& begun) const = 0;
};

// The sum of weight x delta: a mean when the weights sum to 1.
class LinearReducer final : public DeltaReducer {
 public:
  absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                     absl::Span<float> delta,
                                     const CallOptions& options) const override;
  absl::Status Finish(const RefPtr<Work>& begun) const override;
};

}  // namespace entrain
