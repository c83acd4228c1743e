// Gathers numbers from all ranks of a replica. Every rank then adds these numbers in double and in
// rank order, so all ranks get the same bits.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"
#include "lib/comm/mesh.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// The ranks of a replica that hold the same parameters (copies). Along the context axis, ranks hold
// copies of all parameters. Along the tensor axis, ranks hold copies of the layers that the caller
// has declared replicated. Copies must stay equal in every bit. Every exchange checks this.
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

// The groups of an exchange.
struct ExchangeGroups {
  std::shared_ptr<Communicator> model, sync;  // used by nothing else; null: one rank
  int copies = 1;  // number of ranks of a replica with the same parameters
  int tensor = 1;  // number of ranks with the same replicated layers
  Copies held;     // which ranks of the model group hold copies
};

class ReplicaSums {
 public:
  // `slab` and `groups` must outlive this object. `timeout_ns` applies to each call; 0: the group's
  // default.
  ReplicaSums(const Slab& slab, const ExchangeGroups& groups, int64_t timeout_ns)
      : slab_(slab), groups_(groups), timeout_ns_(timeout_ns) {}

  // Returns this rank's part of the layer's sum of squares. If n ranks hold the same elements, each
  // of them returns 1 / n of `square`. So elements count once in the sum over all ranks.
  double Share(int layer, double square) const;
  // Returns the values of each rank of the replica, in rank order. `tag` is the number of the
  // layer. In a rendezvous `tag` is the number of layers.
  absl::StatusOr<std::vector<double>> Gather(int64_t tag, const std::vector<double>& values) const;
  // Compares ranks that hold the same elements. Returns kDataLoss on all ranks of the replica if
  // these ranks differ. `all` is the result of a Gather. In `all`, the values of each rank begin
  // with the squares of these layers, and end with a checksum of the rank's anchors.
  absl::Status CheckCopies(const std::vector<int>& layers, const std::vector<double>& all) const;
  // Sums a column of a table with rows of length `width`, in row order.
  static double SumOfColumn(const std::vector<double>& table, size_t width, size_t column);

 private:
  const Slab& slab_;
  const ExchangeGroups& groups_;
  const int64_t timeout_ns_;
};

}  // namespace entrain
