// What a round does with an exchange: the part of Exchange that runs layer by layer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/train/rendezvous.h"

namespace entrain {

class LayerExchange {
 public:
  virtual ~LayerExchange() = default;

  // The rendezvous of all replicas: each brings its standing and the norms of these layers. True: the replicas exchange, and
  // weights are known. Of `mine`, tokens, flags and metric are this rank's own and are added up over its replica; the
  // checksum is filled in. `extra_ns`: how much longer than usual the others may take.
  virtual absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                                     int64_t extra_ns) = 0;
  virtual absl::Status Begin(int layer) = 0;
  virtual absl::Status Finish(int layer) = 0;

  // Behind further steps: what Snapshot has taken is exchanged, from Judge on until Merge; Begin and Finish leave the live
  // parameters alone.
  virtual void UseSnapshot(const std::vector<int>& layers) = 0;
  // The live parameters from the new anchor and what this replica has done since the snapshot, as overlap_merge says. A layer
  // that was not finite becomes the anchor.
  virtual void Merge(const std::vector<int>& layers) = 0;
  // Instead: nothing was exchanged.
  virtual void DropSnapshot(const std::vector<int>& layers) = 0;
};

}  // namespace entrain
