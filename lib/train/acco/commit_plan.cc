#include "lib/train/acco/commit_plan.h"

#include <algorithm>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

absl::Status Differ(size_t rank, int64_t its, int64_t others) {
  return absl::DataLossError(absl::StrCat("after a loss rank ", rank,
                                          " of those left has finished ", its,
                                          " rounds, and another ", others));
}

absl::Status CheckPlace(size_t rank, const ChannelPlace& place, const CommitPlan& plan) {
  const bool ahead = place.rounds > plan.rounds;
  const bool under_way = place.phase == RoundPhase::kReady || place.phase == RoundPhase::kDecided;
  if (place.rounds > plan.rounds + 1 || (ahead && under_way)) {
    return Differ(rank, place.rounds, plan.rounds);
  }
  // A rank decides a commit only after all ranks have voted.
  const bool voted = place.commits == 0 || place.phase != RoundPhase::kBegun;
  return plan.decided < 0 || ahead || voted
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat(
                   "after a loss rank ", rank, " of those left has not voted for commit round ",
                   plan.rounds + 1, ", which rank ", plan.decided, " has decided"));
}

}  // namespace

absl::StatusOr<CommitPlan> PlanCommit(absl::Span<const ChannelPlace> places) {
  CommitPlan plan;
  plan.rounds = std::min_element(places.begin(), places.end(), [](const auto& a, const auto& b) {
                  return a.rounds < b.rounds;
                })->rounds;
  int64_t cuts = places[0].cuts;
  bool all_prepared = places[0].prepared != 0, same_cut = true;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const ChannelPlace& place = places[rank];
    const bool finished = place.rounds > plan.rounds;
    if (finished && plan.finished < 0) {
      plan.finished = static_cast<int>(rank);
    }
    if ((finished || place.phase == RoundPhase::kDecided) && plan.decided < 0) {
      plan.decided = static_cast<int>(rank);
    }
    same_cut = same_cut && place.cuts == cuts;
    cuts = std::max(cuts, place.cuts);
    all_prepared = all_prepared && place.prepared == places[0].prepared;
  }
  plan.take_cut = !same_cut || all_prepared;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const ChannelPlace& place = places[rank];
    if (place.cuts < cuts && (place.cuts + 1 < cuts || place.prepared == 0)) {
      return absl::DataLossError(absl::StrCat("after a loss rank ", rank,
                                              " of those left lacks the shards of cut ", cuts));
    }
    if (const absl::Status status = CheckPlace(rank, place, plan); !status.ok()) {
      return status;
    }
  }
  return plan;
}

absl::StatusOr<std::vector<int>> HoldersOf(absl::Span<const int> members,
                                           absl::Span<const int> left) {
  const auto rank_of = [&](int member) {
    const auto at = std::lower_bound(left.begin(), left.end(), member);
    return at != left.end() && *at == member ? static_cast<int>(at - left.begin()) : -1;
  };
  std::vector<int> holders;
  for (size_t i = 0; i < members.size(); ++i) {
    const int buddy = members[(i + 1) % members.size()];
    const int own = rank_of(members[i]);
    holders.push_back(own >= 0 ? own : rank_of(buddy));
    if (holders.back() < 0) {
      return absl::DataLossError(absl::StrCat(
          "rank ", members[i], " was lost together with rank ", buddy,
          ", which had the copy of its shard; start the ranks again from the last checkpoint"));
    }
  }
  return holders;
}

std::vector<ShardMove> MovesOf(int64_t count, absl::Span<const int> holders, int ranks) {
  const auto cut = [count](int64_t slots) { return (count + slots - 1) / slots; };
  const int64_t before = cut(static_cast<int64_t>(holders.size())), after = cut(ranks);
  std::vector<ShardMove> moves;
  for (size_t shard = 0; shard < holders.size(); ++shard) {
    const int64_t end = std::min(count, (static_cast<int64_t>(shard) + 1) * before);
    for (int64_t first = static_cast<int64_t>(shard) * before; first < end;) {
      const int64_t to = first / after;
      const int64_t here = std::min(end, (to + 1) * after) - first;
      moves.push_back({.from = holders[shard],
                       .to = static_cast<int>(to),
                       .shard = static_cast<int>(shard),
                       .first = first,
                       .count = here});
      first += here;
    }
  }
  std::sort(moves.begin(), moves.end(), [](const ShardMove& a, const ShardMove& b) {
    return std::tie(a.from, a.to, a.first) < std::tie(b.from, b.to, b.first);
  });
  return moves;
}

}  // namespace entrain
