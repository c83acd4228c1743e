// Combines the deltas of all replicas into one. Begin and Finish are separate, so that the next
// layer can begin while a layer's delta is sent.
//
// Thread safety: all functions are const, and may be called from any thread.
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
  // Returns the factor by which this rank must multiply its delta before Begin. `weights` has the
  // weight of each rank of `across`, the sync group, and is the same on all ranks. `across` is null
  // if there is one replica.
  virtual float Factor(const Communicator* across, absl::Span<const double> weights) const = 0;
  // Returns the call that all-reduces this rank's `delta`. On a rank of weight 0, `delta` must be
  // zeros. The result replaces `delta`, and has the same bits on all ranks.
  virtual Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                         const CallOptions& options) const = 0;
  // Starts the all-reduce and does not block. The caller must not use `delta` until Finish has
  // returned.
  absl::StatusOr<RefPtr<Work>> Begin(Communicator* across, absl::Span<const double> weights,
                                     absl::Span<float> delta, const CallOptions& options) const;
  absl::Status Finish(const RefPtr<Work>& begun) const;
  // Returns the state that the reducer keeps between exchanges, or null.
  virtual MergeState* state() const { return nullptr; }
};

// Computes the sum of weight x delta. The sum is a mean if the weights sum to 1.
class LinearReducer final : public DeltaReducer {
 public:
  float Factor(const Communicator* across, absl::Span<const double> weights) const override;
  Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                 const CallOptions& options) const override;
};

// Generalised task arithmetic: for each element, computes the weighted sum over the replicas that
// agree with the elected sign. One call does this. The settings say how the call sparsifies and
// encodes the deltas (lib/base/merging.h).
class GtaReducer final : public DeltaReducer {
 public:
  // `settings` must have been checked. The weights in `settings` are not used.
  explicit GtaReducer(const Merging& settings);
  float Factor(const Communicator* across, absl::Span<const double> weights) const override;
  Call AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                 const CallOptions& options) const override;
  MergeState* state() const override { return reduction_.merge_state.get(); }

 private:
  const Reduction reduction_;  // the settings, and the state kept between calls
};

}  // namespace entrain
