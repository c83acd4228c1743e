// Knows which ranks of a replica hold copies. Along the context axis, ranks hold copies of all
// parameters. Along the tensor axis, ranks hold copies of the layers that the caller has declared
// replicated. Copies must stay equal in every bit. Every exchange checks this.
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
  // Makes an object for a mesh in which no rank has a copy.
  Copies() = default;
  // Collective over `model`, the ranks of the replica.
  static absl::StatusOr<Copies> Find(const Mesh& mesh, Communicator& model);

  bool exist() const { return !holds_.empty(); }
  // `all` holds, for each rank of the replica, the sums of squares of the pseudo-gradients in its
  // shards of these layers. Returns kDataLoss, naming the layer and the ranks, if copies differ.
  absl::Status CheckSquares(const Slab& slab, absl::Span<const int> layers,
                            absl::Span<const double> all) const;
  // `all` holds the checksum of each rank's anchors.
  absl::Status CheckAnchors(absl::Span<const uint64_t> all) const;

 private:
  // By rank: a number that is equal on ranks with equal shards of all layers, and one that is equal
  // on ranks with equal shards of the replicated layers.
  std::vector<int64_t> holds_, holds_replicated_;
};

}  // namespace entrain
