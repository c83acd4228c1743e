// The state of a layer that ranks of a sync group send to each other. Normally this is the anchor
// and the arrays of the outer optimizer. If EditOptions::keeps_means is set, it is the combined
// delta.
//
// Thread safety: one thread at a time, the thread that runs the exchange.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/memory/buffer.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange_members.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class LayerState {
 public:
  // The arguments must outlive this object.
  LayerState(const Slab& slab, const EditOptions& options, const ExchangeMembers& members,
             Anchors* anchors)
      : slab_(slab), options_(options), members_(members), anchors_(*anchors) {}

  // With keeps_means, allocates memory for the combined deltas.
  absl::Status Reserve();
  // With keeps_means, stores the combined delta of a layer.
  void KeepMean(int layer, const float* mean);

  // Collective over the sync group. Rank `root` sends the arrays of the layer. Returns the received
  // arrays; empty on `root`.
  absl::StatusOr<OwnedBuffer> Broadcast(int layer, int root);
  // Makes the received arrays the state of the layer.
  void Take(int layer, const OwnedBuffer& received);

 private:
  std::vector<float*> Of(int layer);
  float* MeanOf(int layer) const;

  const Slab& slab_;
  const EditOptions& options_;
  const ExchangeMembers& members_;
  Anchors& anchors_;
  OwnedBuffer means_;  // with keeps_means: the last combined deltas, laid out like the slab
};

}  // namespace entrain
