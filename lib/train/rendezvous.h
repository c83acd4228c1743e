// What a replica says of itself when all replicas meet, and what follows from what all of them said. Pure: every rank has
// the same table and comes to the same end.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace entrain {

// Standing::flags.
constexpr uint64_t kWantCheckpoint = 1, kWantStop = 2;
constexpr uint64_t kLeaving = 4;   // this replica trains no more, and stays until all are leaving
constexpr uint64_t kInsist = 8;    // exchange however little was trained
constexpr uint64_t kCounted = 16;  // tokens_since is what was counted, also if it is 0

// One record a replica, as it travels.
struct Standing {
  uint64_t round = 0;            // rendezvous before this one
  uint64_t steps = 0;            // g
  uint64_t steps_since = 0;      // since the last exchange
  uint64_t tokens_since = 0;     // likewise
  uint64_t flags = 0;            // any of the above
  uint64_t anchor_checksum = 0;  // 0: no anchors
  double metric_sum = 0;         // since the last rendezvous: sum of weight x metric ...
  double metric_weight = 0;      // ... and of weight
};
static_assert(sizeof(Standing) == 64);

// kDataLoss naming both values and replicas if rounds or anchors differ.
absl::Status CheckStandings(absl::Span<const Standing> all);
// Whether this rendezvous exchanges: `least` steps have been made since the last exchange, all replicas together; or
// somebody insists, or all are leaving, and there was any step.
bool Exchanges(absl::Span<const Standing> all, int64_t least);
bool AllLeave(absl::Span<const Standing> all);
// What each replica has trained since the last exchange, to be weighed by: tokens, if all that made steps have counted them
// and there were any, else steps. As published: steps since the beginning.
std::vector<double> Trained(absl::Span<const Standing> all, bool as_published);

}  // namespace entrain
