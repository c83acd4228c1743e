// Numbers that each rank of a replica brings, gathered so that all add them up alike: in rank order, in double, to the same bits.
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
  std::shared_ptr<Communicator> model, sync;  // for this object alone; null: a group of one
  int copies = 1;                             // ranks of the model group with the same parameters
  int tensor = 1;                             // as many again, of layers that are replicated
  Copies held;                                // which ranks of the model group these are
};

class ReplicaSums {
 public:
  // `slab` and `groups` outlive this. `timeout_ns`: of each call; 0: the group's default.
  ReplicaSums(const Slab& slab, const ExchangeGroups& groups, int64_t timeout_ns)
      : slab_(slab), groups_(groups), timeout_ns_(timeout_ns) {}

  // What this rank's shard adds to the layer's sum of squares: what several ranks hold copies of counts once.
  double Share(int layer, double square) const;
  // What each rank of the replica brings, in rank order. `tag`: the layer; for the rendezvous the number of layers.
  absl::StatusOr<std::vector<double>> Gather(int64_t tag, const std::vector<double>& values) const;
  // `all`: what Gather gave where each rank brought the squares of these layers first, and the checksum of its anchors last.
  // kDataLoss where ranks that hold copies differ, on all ranks of the replica.
  absl::Status CheckCopies(const std::vector<int>& layers, const std::vector<double>& all) const;
  // Of a table whose rows are `width` long, in row order.
  static double SumOfColumn(const std::vector<double>& table, size_t width, size_t column);

 private:
  const Slab& slab_;
  const ExchangeGroups& groups_;
  const int64_t timeout_ns_;
};

}  // namespace entrain
