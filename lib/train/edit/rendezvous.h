// The standings that replicas exchange at a rendezvous, and the decisions that follow. The
// functions are pure: every rank has the same table and makes the same decisions.
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
constexpr uint64_t kApplied = 256;  // set by rank 0: newcomers have applied
constexpr uint64_t kWishes = kWantCheckpoint | kWantStop;
// Standing::flags also contains two numbers. The value of flags must be below 2^53, because the
// ranks of a replica send it as a double.
//
// The bits from kNewShift up to kLateShift are nonzero for a newcomer whose weight still grows.
// They hold the number of exchanges in which the newcomer has counted, including this one.
//
// The bits from kLateShift up are nonzero if this replica's pseudo-gradient is late and option late
// is weighted. They hold the number of rounds by which the pseudo-gradient is late.
constexpr int kNewShift = 16, kNewBits = 10, kLateShift = kNewShift + kNewBits;
constexpr uint64_t kMostNew = (1 << kNewBits) - 1;

// The record of one replica. Ranks send this struct as it is in memory.
struct Standing {
  uint64_t round = 0;            // number of rendezvous before this rendezvous
  uint64_t steps = 0;            // steps of the replica so far (g)
  uint64_t steps_since = 0;      // steps since the last exchange
  uint64_t tokens_since = 0;     // tokens since the last exchange
  uint64_t flags = 0;            // flags above
  uint64_t anchor_checksum = 0;  // sum over the replica's ranks; 0: no anchors, or not compared
  double metric_sum = 0;         // since the last rendezvous: sum of weight x metric
  double metric_weight = 0;      // since the last rendezvous: sum of weights
};
static_assert(sizeof(Standing) == 64);

// The result of a rendezvous. It is the same on all ranks. It has a row for each replica that took
// part, in ascending order of the replicas' numbers.
struct NormTable {
  std::vector<int> replicas;  // by row: the replica's number in the mesh
  std::vector<Standing> standings;
  std::vector<int> layers;
  // Row by row, the norm of each layer. A negative norm means that the replica's own anomaly
  // detector has rejected the layer.
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

// CheckRounds and CheckAnchors return kDataLoss if the rounds or the anchors of two replicas
// differ. The message names both replicas and both values. `replicas` has the numbers of the
// replicas in `all`.
absl::Status CheckRounds(absl::Span<const Standing> all, absl::Span<const int> replicas);
absl::Status CheckAnchors(absl::Span<const Standing> all, absl::Span<const int> replicas);
// The same for the steps, if each replica asks its own interval_schedule when to exchange. An
// exchange that was requested, or for which a leaving replica waits, may be at different steps.
absl::Status CheckScheduledSteps(absl::Span<const Standing> all, absl::Span<const int> replicas);
// Returns true if an exchange follows this rendezvous. This requires that all replicas together
// have made at least `least` steps since the last exchange. One step is enough if a replica insists
// (kInsist), or if all replicas are leaving (kLeaving).
bool Exchanges(absl::Span<const Standing> all, int64_t least);
bool AllLeave(absl::Span<const Standing> all);
// Returns the factor by which a replica's weight is multiplied. For a newcomer that has counted in
// c exchanges before this one, with c < warmup, the factor is (c + 1) / (warmup + 1). Otherwise it
// is 1.
double Grown(const Standing& one, int64_t warmup);
// Returns each replica's amount of training since the last exchange, for the weights.
enum class Amount {
  // Tokens, if all replicas that made steps have counted them, and any were counted; otherwise
  // steps.
  kTokens,
  kTimesRate,  // the same, times the amount per step: c_tokens c_tokens / c_steps, arXiv 2604.21428
  kPublished   // steps since the beginning of the run, as in the published code of EDiT
};
std::vector<double> Trained(absl::Span<const Standing> all, Amount amount);

}  // namespace entrain
