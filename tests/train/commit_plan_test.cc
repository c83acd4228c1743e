#include "lib/train/acco/commit_plan.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/shard/slab.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- All states of a small channel -----------------------------------------------------------------

// A rank of the model. Rounds 1, 3, ... are commits, the others estimates.
struct Rank {
  int rounds = 0;
  RoundPhase phase = RoundPhase::kBegun;
  bool idle = false;  // has finished a round and not yet begun the next
  friend auto operator<=>(const Rank&, const Rank&) = default;
};
using Ranks = std::vector<Rank>;

bool IsCommit(int round) {
  return round % 2 == 1;
}

// Returns true if every rank has at least entered the given phase of the round.
bool AllIn(const Ranks& ranks, int round, RoundPhase phase) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
    return rank.rounds > round || (rank.rounds == round && !rank.idle && rank.phase >= phase);
  });
}

// Makes the rank's next move if the collective in its way may be over. Returns false otherwise.
bool Move(Ranks* ranks, size_t i) {
  Rank& rank = (*ranks)[i];
  if (rank.idle) {
    rank.idle = false;
    rank.phase = RoundPhase::kBegun;
    return true;
  }
  const bool commit = IsCommit(rank.rounds);
  if (commit && rank.phase == RoundPhase::kBegun) {  // sums of all
    if (!AllIn(*ranks, rank.rounds, RoundPhase::kBegun)) {
      return false;
    }
    rank.phase = RoundPhase::kReady;
  } else if (commit && rank.phase == RoundPhase::kReady) {  // votes of all
    if (!AllIn(*ranks, rank.rounds, RoundPhase::kReady)) {
      return false;
    }
    rank.phase = RoundPhase::kDecided;
  } else {  // parameters of all
    if (!AllIn(*ranks, rank.rounds, commit ? RoundPhase::kDecided : RoundPhase::kBegun)) {
      return false;
    }
    ++rank.rounds;
    rank.idle = true;
    rank.phase = RoundPhase::kFinished;
  }
  return true;
}

std::set<Ranks> AllStates(size_t size, int rounds) {
  std::set<Ranks> seen = {Ranks(size)};
  std::deque<Ranks> open(seen.begin(), seen.end());
  while (!open.empty()) {
    for (size_t i = 0; i < size; ++i) {
      Ranks next = open.front();
      if (Move(&next, i) && next[i].rounds <= rounds && seen.insert(next).second) {
        open.push_back(next);
      }
    }
    open.pop_front();
  }
  return seen;
}

// Ranks that are idle when others are lost begin their next round and fail in it.
ChannelPlace PlaceOf(const Rank& rank) {
  return {.rounds = rank.rounds,
          .commits = IsCommit(rank.rounds) ? 1 : 0,
          .phase = rank.idle ? RoundPhase::kBegun : rank.phase};
}

// Returns the number of commits that a rank has stepped.
int Steps(const Rank& rank) {
  const bool decided = rank.phase == RoundPhase::kDecided && !rank.idle;
  return (rank.rounds + 0) / 2 + (decided ? 1 : 0);
}

// Whichever ranks are lost, and in whatever state, the plan brings all other ranks to the same
// commit, and no rank has to undo a step.
TEST(CommitPlan, BringsAllToTheSameCommitFromEveryState) {
  int checked = 0, repeated = 0, decided = 0, finished = 0;
  for (const size_t size : {2u, 3u, 4u}) {
    for (const Ranks& ranks : AllStates(size, 4)) {
      for (uint32_t left = 1; left < (1u << size); ++left) {
        std::vector<ChannelPlace> places;
        std::vector<int> steps;
        for (size_t i = 0; i < size; ++i) {
          if ((left >> i & 1) != 0) {
            places.push_back(PlaceOf(ranks[i]));
            steps.push_back(Steps(ranks[i]));
          }
        }
        const auto plan = PlanCommit(places);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const int most = *std::max_element(steps.begin(), steps.end());
        for (size_t i = 0; i < places.size(); ++i) {
          const ChannelPlace& place = places[i];
          const bool behind = place.rounds == plan->rounds;
          const bool makes_step = plan->decided >= 0 && behind && place.commits != 0 &&
                                  place.phase == RoundPhase::kReady;
          EXPECT_EQ(steps[i] + (makes_step ? 1 : 0), most);
          if (plan->decided < 0) {
            EXPECT_EQ(plan->finished, -1);
          }
        }
        if (plan->finished >= 0) {
          EXPECT_EQ(places[static_cast<size_t>(plan->finished)].rounds, plan->rounds + 1);
        }
        ++checked;
        repeated += plan->decided < 0 ? 1 : 0;
        decided += plan->decided >= 0 && plan->finished < 0 ? 1 : 0;
        finished += plan->finished >= 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(checked, 1000);
  EXPECT_GT(repeated, 100);
  EXPECT_GT(decided, 100);
  EXPECT_GT(finished, 100);
}

// ---- Single plans -----------------------------------------------------------------------------------

constexpr ChannelPlace In(int64_t rounds, RoundPhase phase, int64_t commits = 1) {
  return {.rounds = rounds, .commits = commits, .phase = phase};
}
constexpr RoundPhase kBegun = RoundPhase::kBegun, kReady = RoundPhase::kReady,
                     kDecided = RoundPhase::kDecided, kFinished = RoundPhase::kFinished;

TEST(CommitPlan, TheLowestRankThatKnowsTells) {
  EXPECT_EQ(PlanCommit({In(3, kReady), In(3, kDecided), In(3, kDecided)})->decided, 1);
  EXPECT_EQ(PlanCommit({In(3, kReady), In(4, kBegun, 0), In(4, kFinished)})->finished, 1);
  EXPECT_EQ(PlanCommit({In(3, kReady), In(3, kReady)})->decided, -1);
  EXPECT_EQ(PlanCommit({In(4, kFinished), In(4, kFinished)})->finished, -1);
}

TEST(CommitPlan, RanksThatCannotBeOfOneRunAreNamed) {
  const auto text = [](const std::vector<ChannelPlace>& places) {
    return std::string(PlanCommit(places).status().message());
  };
  EXPECT_THAT(text({In(3, kReady), In(5, kBegun)}),
              HasSubstr("rank 1 of those left has finished 5"));
  EXPECT_THAT(text({In(4, kReady), In(3, kReady)}),
              HasSubstr("rank 0 of those left has finished 4"));
  EXPECT_THAT(text({In(3, kDecided), In(3, kBegun)}),
              HasSubstr("rank 1 of those left has not voted"));
  EXPECT_EQ(text({In(3, kBegun, 0), In(4, kBegun)}), "") << "an estimate has no votes";
}

// A cut is taken if a rank has taken it, or if all ranks are prepared for this cut.
TEST(CommitPlan, ACutIsTakenByAllOrNone) {
  const auto place = [](int64_t cuts, int64_t prepared) {
    return ChannelPlace{.cuts = cuts, .prepared = prepared, .rounds = 3};
  };
  EXPECT_FALSE(PlanCommit({place(1, 0), place(1, 0)})->take_cut);
  EXPECT_FALSE(PlanCommit({place(1, 2), place(1, 0)})->take_cut);
  EXPECT_FALSE(PlanCommit({place(1, 2), place(1, 3)})->take_cut);
  EXPECT_TRUE(PlanCommit({place(1, 2), place(1, 2)})->take_cut);
  EXPECT_TRUE(PlanCommit({place(1, 2), place(2, 0)})->take_cut);
  EXPECT_THAT(std::string(PlanCommit({place(2, 0), place(1, 0)}).status().message()),
              HasSubstr("rank 1 of those left lacks the shards of cut 2"));
}

// ---- Shards -----------------------------------------------------------------------------------------

TEST(HoldersOf, ARightNeighbourGivesTheShardOfALostRank) {
  EXPECT_THAT(*HoldersOf({0, 1, 2, 3}, {0, 1, 2, 3}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(*HoldersOf({0, 1, 2, 3}, {0, 1, 3}), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(*HoldersOf({0, 1, 2, 3}, {0, 2}), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(*HoldersOf({0, 2, 5}, {0, 2}), ElementsAre(0, 1, 0));
}

TEST(HoldersOf, NamesARankThatWasLostWithItsNeighbour) {
  EXPECT_THAT(std::string(HoldersOf({0, 2, 3, 5}, {0, 5}).status().message()),
              HasSubstr("rank 2 was lost together with rank 3, which had the copy of its shard"));
  EXPECT_THAT(std::string(HoldersOf({0, 2, 5}, {2}).status().message()),
              HasSubstr("rank 5 was lost together with rank 0"));
}

// Whatever ranks are left, shards come from ranks that have them, unless neighbours are lost together.
TEST(HoldersOf, IsRightForEverySetOfRanks) {
  for (int size = 1; size <= 8; ++size) {
    std::vector<int> members(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    for (uint32_t set = 1; set < (1u << size); ++set) {
      std::vector<int> left;
      bool together = false;
      for (int i = 0; i < size; ++i) {
        if ((set >> i & 1) != 0) {
          left.push_back(i);
        } else {
          together = together || (set >> ((i + 1) % size) & 1) == 0;
        }
      }
      const auto holders = HoldersOf(members, left);
      ASSERT_EQ(holders.ok(), !together) << size << " " << set;
      for (int i = 0; !together && i < size; ++i) {
        const int holder = left[static_cast<size_t>((*holders)[static_cast<size_t>(i)])];
        EXPECT_TRUE(holder == i || ((set >> i & 1) == 0 && holder == (i + 1) % size));
      }
    }
  }
}

// Every element is sent once, from the shard that has it to the shard to which it belongs.
TEST(MovesOf, BringEveryElementToItsNewShard) {
  for (int64_t count = 1; count <= 23; ++count) {
    for (int before = 1; before <= 6; ++before) {
      for (int after = 1; after <= before; ++after) {
        std::vector<int> holders;
        for (int shard = 0; shard < before; ++shard) {
          holders.push_back((shard * 5 + 2) % after);
        }
        std::vector<int> times(static_cast<size_t>(count));
        const auto moves = MovesOf(count, holders, after);
        for (const ShardMove& move : moves) {
          EXPECT_EQ(move.from, holders[static_cast<size_t>(move.shard)]);
          const Slab from = *Slab::Make(std::vector<int64_t>{count}, before, move.shard);
          const Slab to = *Slab::Make(std::vector<int64_t>{count}, after, move.to);
          for (const Slab& slab : {from, to}) {
            EXPECT_GE(move.first, slab.layer(0).first);
            EXPECT_LE(move.first + move.count, slab.layer(0).first + slab.layer(0).valid);
          }
          for (int64_t i = 0; i < move.count; ++i) {
            ++times[static_cast<size_t>(move.first + i)];
          }
        }
        EXPECT_THAT(times, testing::Each(1));
        EXPECT_TRUE(std::is_sorted(moves.begin(), moves.end(), [](const auto& a, const auto& b) {
          return std::tie(a.from, a.to, a.first) < std::tie(b.from, b.to, b.first);
        }));
      }
    }
  }
}

}  // namespace
}  // namespace entrain
