// Plans how the remaining ranks of a gradient channel finish a round after a loss. The functions
// are pure. All ranks have the same arguments, so they make the same plan.
//
// A commit has two phases. A rank is ready when it has the summed gradients of its own shard and of
// its left neighbour's shard. Then all ranks vote. When a rank has received the votes of all ranks,
// the commit is decided. Then the rank makes the step on its own shard and on its copy of the
// neighbour's shard:
//
//              counts, sums, neighbour's sum    vote       step, parameters
//   rank 0     ----------------------------> ready -> decided -----------> finished
//   rank 1     ----------------------------> ready          has lost a rank in the vote
//   rank 2     ----------------------------> ready -> dies
//
//   plan       rank 0 has decided, so rank 1 makes the step too. It includes rank 2
//
// If no rank has decided, no rank has made the step, and the round is repeated without the lost
// ranks. If a rank has finished the round, it sends its parameters to the other ranks. An estimate
// has no vote, because it changes no state.
//
// Afterwards the remaining ranks make a new partition ("cut") of the parameters. This also has two
// phases. A rank is prepared when it has all its shards of the new partition. When all ranks have
// voted, they replace the old partition.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

enum class RoundPhase : int64_t { kBegun = 0, kReady = 1, kDecided = 2, kFinished = 3 };

// The progress of a rank. Ranks send this struct as it is in memory.
struct ChannelPlace {
  int64_t cuts = 0;  // how often its partition has changed
  // If the rank has all its shards of the next partition: the generation of that partition's
  // communicator. Otherwise 0.
  int64_t prepared = 0;
  int64_t rounds = 0;   // number of finished rounds
  int64_t commits = 0;  // 1 if its last round is a commit, otherwise 0
  // The phase of its last round. If the phase is kFinished, `rounds` includes this round.
  RoundPhase phase = RoundPhase::kBegun;
};

struct CommitPlan {
  // True: a rank with a prepared partition takes it.
  bool take_cut = false;
  // The lowest number of finished rounds on any rank. The plan concerns the round after these
  // rounds.
  int64_t rounds = 0;
  // The lowest rank that has finished this round; -1: none.
  int finished = -1;
  // The lowest rank that has finished this round or has decided its commit; -1: none. If there is
  // one, the other ranks make the same step.
  int decided = -1;
};

// `places` is indexed by rank. If the places contradict each other, returns kDataLoss with the
// ranks concerned.
absl::StatusOr<CommitPlan> PlanCommit(absl::Span<const ChannelPlace> places);

// Returns, for each shard of a partition, the rank that sends it, as an index into `left`. Rank i
// of the partition holds shard i, and its right neighbour holds a copy. `members` has the numbers
// of the partition's ranks, `left` those of the remaining ranks. Both ascend. If a rank was lost
// together with its right neighbour, returns kDataLoss with both ranks.
absl::StatusOr<std::vector<int>> HoldersOf(absl::Span<const int> members,
                                           absl::Span<const int> left);

// Elements [first, first + count) of all parameters, which rank `from` sends to rank `to`. They are
// in shard number `shard` of the old partition, and in shard number `to` of the new partition.
struct ShardMove {
  int from = 0, to = 0, shard = 0;
  int64_t first = 0, count = 0;
  friend bool operator==(const ShardMove&, const ShardMove&) = default;
};

// Returns the moves that turn holders.size() shards of `count` elements into `ranks` shards, sorted
// by from, to and first. `holders` has, for each old shard, the rank that sends it. Shards have the
// same bounds as in a Slab.
std::vector<ShardMove> MovesOf(int64_t count, absl::Span<const int> holders, int ranks);

}  // namespace entrain
