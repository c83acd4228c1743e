// The ranks of a replica that hold the same parameters (copies). Along the context axis, ranks hold
// copies of all parameters. Along the tensor axis, ranks hold copies of the layers that the caller
// has declared replicated. Copies must stay equal in every bit. Every exchange checks this.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/mesh.h"
#include "lib/train/slab.h"

namespace entrain {

class Copies {
 public:
  // Makes the object for a mesh without copies.
  Copies() = default;
  // Collective over `model`, the communicator of the ranks of the replica.
  static absl::StatusOr<Copies> Find(const Mesh& mesh, Communicator& model);

  bool exist() const { return !holds_.empty(); }
  // Checks the squares of the pseudo-gradients. `all` has, for each rank of the replica and each of
  // these layers, the sum of squares over the rank's shard. If copies differ, returns kDataLoss
  // with the layer and the ranks.
  absl::Status CheckSquares(const Slab& slab, absl::Span<const int> layers,
                            absl::Span<const double> all) const;
  // Does the same for anchors. `all` has the checksum of each rank's anchors.
  absl::Status CheckAnchors(absl::Span<const uint64_t> all) const;

 private:
  // By rank: a number that is equal on ranks with copies of all layers. The second vector has
  // numbers that are equal on ranks with copies of the replicated layers.
  std::vector<int64_t> holds_, holds_replicated_;
};

}  // namespace entrain
