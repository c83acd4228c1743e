// Gathers numbers from all ranks of a replica. Every rank then adds them in double and in rank
// order, so all ranks get the same bits.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/train/copies.h"
#include "lib/train/slab.h"

namespace entrain {

// The groups of an exchange.
struct ExchangeGroups {
  std::shared_ptr<Communicator> model, sync;  // for this object alone; null: one rank
  int copies = 1;                             // ranks of the model group with the same parameters
  int tensor = 1;                             // ranks with the same replicated layers
  Copies held;                                // which ranks of the model group hold copies
};

class ReplicaSums {
 public:
  // `slab` and `groups` must outlive this object. `timeout_ns` applies to each call; 0: the group's
  // default.
  ReplicaSums(const Slab& slab, const ExchangeGroups& groups, int64_t timeout_ns)
      : slab_(slab), groups_(groups), timeout_ns_(timeout_ns) {}

  // Returns this rank's part of the layer's sum of squares. Elements that several ranks hold as
  // copies are counted once.
  double Share(int layer, double square) const;
  // Returns the values of each rank of the replica, in rank order. `tag` is the layer, or for the
  // rendezvous the number of layers.
  absl::StatusOr<std::vector<double>> Gather(int64_t tag, const std::vector<double>& values) const;
  // `all` is the result of a Gather. In `all`, each rank's values begin with the squares of these
  // layers and end with a checksum of its anchors. Returns kDataLoss on all ranks of the replica if
  // ranks that hold copies differ.
  absl::Status CheckCopies(const std::vector<int>& layers, const std::vector<double>& all) const;
  // Sums a column of a table with rows of length `width`, in row order.
  static double SumOfColumn(const std::vector<double>& table, size_t width, size_t column);

 private:
  const Slab& slab_;
  const ExchangeGroups& groups_;
  const int64_t timeout_ns_;
};

}  // namespace entrain
