// How the deltas of all replicas become one. In two halves, so that the next layer can begin while
// one travels.
//
// Thread safety: const, any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/base/merging.h"
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
  absl::Status Finish(const RefPtr<Work>& begun) const;
};

// The sum of weight x delta: a mean when the weights sum to 1.
class LinearReducer final : public DeltaReducer {
 public:
  absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                     absl::Span<float> delta,
                                     const CallOptions& options) const override;
};

// Generalised task arithmetic: the same, element by element over the replicas that agree with the
// elected sign, in one call (lib/base/merging.h).
class GtaReducer final : public DeltaReducer {
 public:
  GtaReducer(Consensus consensus, bool normalize) : consensus_(consensus), normalize_(normalize) {}
  absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                     absl::Span<float> delta,
                                     const CallOptions& options) const override;

 private:
  const Consensus consensus_;
  const bool normalize_;
};

}  // namespace entrain
