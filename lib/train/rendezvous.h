// The standings that replicas exchange at a rendezvous, and the decisions that follow. Pure
// functions: every rank has the same table and reaches the same decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace entrain {

// Flags of Standing::flags.
constexpr uint64_t kWantCheckpoint = 1, kWantStop = 2;
constexpr uint64_t kLeaving = 4;    // this replica has finished training and waits for the others
constexpr uint64_t kInsist = 8;     // asks for an exchange even if little was trained
constexpr uint64_t kCounted = 16;   // the caller counts tokens, so tokens_since is valid even if 0
constexpr uint64_t kApplied = 256;  // rank 0: processes have applied to become replicas
// Numbers in Standing::flags. The ranks of a replica send flags as a double, which holds 53 bits.
// The bits from kNewShift up to kLateShift are for a newcomer whose weight grows. They hold the
// number of exchanges in which the newcomer has counted, including this one; for other replicas
// they are
// 0. The bits from kLateShift up hold the number of rounds by which a carried pseudo-gradient is
// late, if this number changes its weight.
constexpr int kNewShift = 16, kNewBits = 10, kLateShift = kNewShift + kNewBits;
constexpr uint64_t kMostNew = (1 << kNewBits) - 1;

// The record of one replica. Ranks send this struct as it is in memory.
struct Standing {
  uint64_t round = 0;            // number of rendezvous before this one
  uint64_t steps = 0;            // g
  uint64_t steps_since = 0;      // steps since the last exchange
  uint64_t tokens_since = 0;     // tokens since the last exchange
  uint64_t flags = 0;            // flags above
  uint64_t anchor_checksum = 0;  // sum over the replica's ranks; 0: no anchors, or not compared
  double metric_sum = 0;         // since the last rendezvous: sum of weight x metric
  double metric_weight = 0;      // since the last rendezvous: sum of weights
};
static_assert(sizeof(Standing) == 64);

// The result of a rendezvous, the same on all ranks: a row for each replica that took part, in
// ascending order of the replicas' numbers.
struct NormTable {
  std::vector<int> replicas;  // their numbers in the mesh
  std::vector<Standing> standings;
  std::vector<int> layers;
  // Row by row, the norm of each layer. Negative: the replica's own detector has rejected the
  // layer.
  std::vector<double> norms;

  size_t rows() const { return replicas.size(); }
  double norm(size_t row, size_t layer_index) const {
    return norms[row * layers.size() + layer_index];
  }
  // Returns the row of a replica; rows() if it did not take part.
  size_t RowOf(int replica) const;
  // Returns a table with only the rows of `replicas`.
  NormTable Of(absl::Span<const int> replicas) const;
};

// Return kDataLoss, naming both values and replicas, if the rounds or the anchors of the replicas
// differ. `replicas` has the replicas' numbers.
absl::Status CheckRounds(absl::Span<const Standing> all, absl::Span<const int> replicas);
absl::Status CheckAnchors(absl::Span<const Standing> all, absl::Span<const int> replicas);
// Returns true if an exchange follows this rendezvous: all replicas together have made at least
// `least` steps since the last exchange. One step is enough if a replica insists, or if all are
// leaving.
bool Exchanges(absl::Span<const Standing> all, int64_t least);
bool AllLeave(absl::Span<const Standing> all);
// Returns the factor of a replica's weight: (c + 1) / (warmup + 1) for a newcomer that has counted
// in c exchanges before this one, c < warmup; otherwise 1.
double Grown(const Standing& one, int64_t warmup);
// Returns each replica's amount of training since the last exchange, for weighting: the tokens, if
// all replicas that made steps have counted tokens and any token was counted; otherwise the steps.
// With as_published: the steps since the beginning.
std::vector<double> Trained(absl::Span<const Standing> all, bool as_published);

}  // namespace entrain
