// After a loss in a gradient channel, decides how the remaining ranks finish the round under way.
// Pure functions: every rank has the same arguments and makes the same plan.
//
// A commit has two phases. A rank is ready when it has the summed gradients of its own shard and of
// its left neighbour's shard. Then all ranks vote. When a rank has the votes of all ranks, the
// commit is decided. This rank steps its own shard and its copy of the neighbour's shard:
//
//              counts, sums, neighbour's sum    vote       step, parameters
//   rank 0     ----------------------------> ready -> decided -----------> finished
//   rank 1     ----------------------------> ready          has lost a rank in the vote
//   rank 2     ----------------------------> ready -> dies
//
//   plan       rank 0 has decided, so rank 1 steps too: the round counts rank 2
//
// If no rank has decided, no rank has stepped, and the round is repeated without the lost ranks. If
// a rank has finished the round, it sends the others its parameters. Estimates have no vote,
// because they change nothing.
//
// Afterwards the shards are cut anew for the remaining ranks. This too has two phases: a rank is
// prepared when it has all of its new shards. Then all ranks vote, and take the new cut.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

enum class RoundPhase : int64_t { kBegun = 0, kReady = 1, kDecided = 2, kFinished = 3 };

// The progress of a rank. Ranks send this struct as it is in memory.
struct ChannelPlace {
  int64_t cuts = 0;  // how often its shards have been cut anew
  // If the rank has all of its shards of the next cut: the generation of that cut's communicator.
  // Else 0.
  int64_t prepared = 0;
  int64_t rounds = 0;   // rounds that it has finished
  int64_t commits = 0;  // 1: its last round is a commit
  // The phase of its last round. In kFinished, `rounds` includes this round.
  RoundPhase phase = RoundPhase::kBegun;
  int64_t saves = 0;  // number of saves that it has finished
};

struct CommitPlan {
  // True: ranks that are prepared take the next cut.
  bool take_cut = false;
  // The lowest number of finished rounds on any rank. The plan is about the round that follows.
  int64_t rounds = 0;
  // The lowest rank that has finished the round of the plan; -1: none.
  int finished = -1;
  // The lowest rank that has finished the round of the plan, or has decided its commit. The other
  // ranks then make the same step. -1: none.
  int decided = -1;
  // The highest number of saves that a rank has finished. A rank that has finished a save knows
  // that the other ranks have written their parts of it.
  int64_t saves = 0;
};

// `places` is indexed by rank. Returns kDataLoss, naming ranks, if the places cannot be of one run.
absl::StatusOr<CommitPlan> PlanCommit(absl::Span<const ChannelPlace> places);

// Shard i of a cut is held by rank i of that cut and, as a copy, by its right neighbour. `members`
// are the numbers of the cut's ranks, and `left` the numbers of the remaining ranks; both ascend.
// Returns, for each shard, the rank that sends it, as an index into `left`. Returns kDataLoss,
// naming both ranks, if a rank was lost together with its right neighbour.
absl::StatusOr<std::vector<int>> HoldersOf(absl::Span<const int> members,
                                           absl::Span<const int> left);

// Elements [first, first + count) of all parameters, which rank `from` sends to rank `to`. They
// belong to the new shard of rank `to`. `shard` is the shard of the old cut that contains them.
struct ShardMove {
  int from = 0, to = 0, shard = 0;
  int64_t first = 0, count = 0;
  friend bool operator==(const ShardMove&, const ShardMove&) = default;
};

// Returns the moves that turn holders.size() shards of `count` elements into `ranks` shards, sorted
// by from, to and first. `holders` has, by old shard, the rank that sends it. Shards are cut as
// Slab cuts a layer.
std::vector<ShardMove> MovesOf(int64_t count, absl::Span<const int> holders, int ranks);

}  // namespace entrain
