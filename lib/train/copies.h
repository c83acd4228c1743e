// Ranks of a replica that hold the same: along the context axis all of their parameters, along the tensor axis the layers that
// are said to be replicated. They train them alike, with the same bits; whether they do is looked at in every exchange.
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
  // No rank has a copy of another's.
  Copies() = default;
  // Collective over `model`, the ranks of the replica.
  static absl::StatusOr<Copies> Find(const Mesh& mesh, Communicator& model);

  bool exist() const { return !holds_.empty(); }
  // `all`: of each rank of the replica the squares of these layers' pseudo-gradients in its shards. kDataLoss naming the layer
  // and the ranks where copies differ.
  absl::Status CheckSquares(const Slab& slab, absl::Span<const int> layers,
                            absl::Span<const double> all) const;
  // `all`: of each rank the checksum of its anchors.
  absl::Status CheckAnchors(absl::Span<const uint64_t> all) const;

 private:
  // By rank: equal where all shards are, and where the shards of replicated layers are.
  std::vector<int64_t> holds_, holds_replicated_;
};

}  // namespace entrain
