// The interface through which an ExchangeRound uses an Exchange, layer by layer.
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

  // Holds the rendezvous of all replicas. Each replica sends its standing and its norms of these
  // layers. Returns true if an exchange follows; then the weights are known. In `mine`, the tokens,
  // flags and metric are those of this rank: Judge combines them over the ranks of the replica.
  // Judge also sets the checksum in `mine`. The time limit of the wait for other replicas is
  // extended by `extra_ns`.
  virtual absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                                     int64_t extra_ns) = 0;
  // Returns the memory that the layer's delta needs from Begin to Finish.
  virtual int64_t DeltaBytes(int layer) const = 0;
  virtual absl::Status Begin(int layer) = 0;
  virtual absl::Status Finish(int layer) = 0;

  // For a round that overlaps with further steps of the caller (option overlap_steps). From Judge
  // until Merge, the exchange uses the snapshots of these layers. Begin and Finish then do not
  // change the live parameters.
  virtual void UseSnapshot(const std::vector<int>& layers) = 0;
  // Computes the live parameters from the new anchor and from this replica's changes since the
  // snapshot (option overlap_merge). If this replica's values of a layer were not finite, the
  // layer's parameters become the anchor.
  virtual void Merge(const std::vector<int>& layers) = 0;
  // Must be called instead of Merge if nothing was exchanged.
  virtual void DropSnapshot(const std::vector<int>& layers) = 0;
};

}  // namespace entrain
