// The state of a layer that ranks of a sync group send to each other, as arrays: the anchor and the
// arrays of its outer state, or, if the caller makes the outer step, the combined delta.
//
// Thread safety: one thread at a time, the thread that runs the exchange.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/memory/buffer.h"
#include "lib/train/anchors.h"
#include "lib/train/edit_options.h"
#include "lib/train/exchange_members.h"
#include "lib/train/slab.h"

namespace entrain {

class LayerState {
 public:
  // The arguments must outlive this object.
  LayerState(const Slab& slab, const EditOptions& options, const ExchangeMembers& members,
             Anchors* anchors)
      : slab_(slab), options_(options), members_(members), anchors_(*anchors) {}

  // Allocates memory for the combined deltas, with keeps_means.
  absl::Status Reserve();
  // Keeps the combined delta of a layer, with keeps_means.
  void KeepMean(int layer, const float* mean);

  // Collective over the sync group. Rank `root` sends the arrays of the layer. Returns a copy on
  // the other ranks.
  absl::StatusOr<OwnedBuffer> Broadcast(int layer, int root);
  // Makes a received copy the state of the layer.
  void Take(int layer, const OwnedBuffer& received);

 private:
  std::vector<float*> Of(int layer);
  float* MeanOf(int layer) const;

  const Slab& slab_;
  const EditOptions& options_;
  const ExchangeMembers& members_;
  Anchors& anchors_;
  OwnedBuffer means_;  // with keeps_means: last combined deltas, laid out like the slab
};

}  // namespace entrain
