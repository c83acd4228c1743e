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
#include "lib/comm/merge_state.h"

namespace entrain {

class DeltaReducer {
 public:
  virtual ~DeltaReducer() = default;
  // What this rank multiplies its delta by before Begin, as it writes it. `weights`: by rank of
  // `across`, the same on all. `across` null: alone.
  virtual float Factor(const Communicator* across, absl::Span<const double> weights) const = 0;
  // The all-reduce of this rank's `delta`. Whose weight is 0 must bring zeros. The result, in the
  // delta's place, has the same bits on all ranks.
  virtual Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                         const CallOptions& options) const = 0;
  // Starts it, and blocks for nobody. The delta is lent until Finish.
  absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                     absl::Span<float> delta, const CallOptions& options) const;
  absl::Status Finish(const RefPtr<Work>& begun) const;
  // What it remembers between exchanges; null: nothing.
  virtual MergeState* state() const { return nullptr; }
};

// The sum of weight x delta: a mean when the weights sum to 1.
class LinearReducer final : public DeltaReducer {
 public:
  float Factor(const Communicator* across, absl::Span<const double> weights) const override;
  Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                 const CallOptions& options) const override;
};

// Generalised task arithmetic: the same, element by element over the replicas that agree with the
// elected sign, in one call, sparsified and encoded if the settings say so (lib/base/merging.h).
class GtaReducer final : public DeltaReducer {
 public:
  // `settings`: checked; its weights are not used.
  explicit GtaReducer(const Merging& settings);
  float Factor(const Communicator* across, absl::Span<const double> weights) const override;
  Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                 const CallOptions& options) const override;
  MergeState* state() const override { return reduction_.merge_state.get(); }

 private:
  const Reduction reduction_;  // with the settings and what calls remember of each other
};

}  // namespace entrain
