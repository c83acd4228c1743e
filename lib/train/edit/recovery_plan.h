// After a loss, decides how the remaining replicas finish the round under way. PlanRecovery is a
// pure function: every rank passes the same `places` and gets the same plan.
//
// A rendezvous needs all ranks, and so does the sum of a layer's deltas. So the ranks differ only a
// little in their progress:
//
//   rank 0   round 7: no rendezvous yet     lacks the table of the rendezvous
//   rank 1   round 7: finished 2 layers     sends the table, and the result of layer 1
//   rank 2   round 7: finished 1 layer      lacks the result of layer 1
//   plan     all get the table and the results of layers 0 and 1. The weights of the other layers
//            are computed again, without the lost replicas
//
// A rank that has finished all layers may already wait in the next rendezvous, or may not have come
// to it yet.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/train/elastic/replica_world.h"

namespace entrain {

// How much a rank knows about the end of training, see Recovery::AwaitOthers.
enum class RunEnd : int64_t {
  kUnknown = 0,
  kAllFinished = 1,      // all ranks have finished their last exchange
  kReplicaFinished = 2,  // and all ranks of this rank's replica know it
};

// The progress of a rank. Ranks send this struct as it is in memory.
struct RoundPlace {
  int64_t over = 0;      // rounds that are over
  int64_t judged = 0;    // 1: the next round has had its rendezvous
  int64_t finished = 0;  // turns of the next round that are finished
  RunEnd end = RunEnd::kUnknown;
};

struct RecoveryPlan {
  int64_t round = 0;  // number of rounds that all ranks have finished
  // The rank that sends the table of the round's rendezvous; -1: all ranks have the table, or no
  // rank has it.
  int table_from = -1;
  // False: no rank has the table. Then there is nothing to finish.
  bool met = false;
  // Turns before `first` are finished on all ranks. Turns in [first, all) are finished on some
  // ranks only. kEnd stands for the end of the round.
  static constexpr int64_t kEnd = INT64_MAX;
  int64_t first = 0, all = 0;
};

// `places` is indexed by rank. Returns kDataLoss if ranks of one run cannot differ as `places` do.
// The message names two of these ranks.
absl::StatusOr<RecoveryPlan> PlanRecovery(absl::Span<const RoundPlace> places);

// Returns the lowest rank that has finished turn `turn` of the plan's round; -1: there is none. The
// second form considers only the ranks of slot `slot`; `of` has the place of each rank. `turn` is
// in [first, all).
int FinishedBy(absl::Span<const RoundPlace> places, int64_t turn);
int FinishedBy(absl::Span<const RoundPlace> places, int64_t turn, absl::Span<const ReplicaPlace> of,
               int slot);

// Returns what a rank of `replica` knows about the end when it has the places of all ranks. `of` has
// the ranks' places in the mesh.
RunEnd RunEndOf(absl::Span<const RoundPlace> places, absl::Span<const ReplicaPlace> of,
                int replica);

}  // namespace entrain
