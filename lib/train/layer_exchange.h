// The interface by which a round uses an Exchange: the functions that run layer by layer.
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

  // Runs the rendezvous of all replicas. Each replica brings its standing and the norms of these
  // layers. Returns true if the replicas exchange; then the weights are known. Tokens, flags and
  // metric in `mine` are those of this rank. Judge combines them over the ranks of the replica.
  // Judge fills in the checksum. `extra_ns` is added to the time limit for the other replicas.
  virtual absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                                     int64_t extra_ns) = 0;
  virtual absl::Status Begin(int layer) = 0;
  virtual absl::Status Finish(int layer) = 0;

  // For an exchange behind further steps: uses the snapshot of these layers from Judge until Merge.
  // Begin and Finish then do not change the live parameters.
  virtual void UseSnapshot(const std::vector<int>& layers) = 0;
  // Computes the live parameters from the new anchor and from this replica's changes since the
  // snapshot, as overlap_merge says. If a layer was not finite, its parameters become the anchor.
  virtual void Merge(const std::vector<int>& layers) = 0;
  // Used in place of Merge if nothing was exchanged.
  virtual void DropSnapshot(const std::vector<int>& layers) = 0;
};

}  // namespace entrain
