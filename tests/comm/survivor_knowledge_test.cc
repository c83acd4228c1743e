#include "lib/comm/failure/survivor_knowledge.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using Error = SurvivorDecision::Error;
using testing::ElementsAre;

RankSet Ranks(int size, const std::vector<int>& ranks) {
  RankSet set(size);
  for (const int rank : ranks) {
    set.Add(rank);
  }
  return set;
}

// Returns the report of a rank that has made the call and has cut these ranks.
SurvivorReport Called(int size, const std::vector<int>& cut = {}) {
  SurvivorReport report;
  report.called = true;
  report.cut = Ranks(size, cut);
  report.gone = report.exclude = RankSet(size);
  return report;
}

TEST(SurvivorKnowledge, AtFirstItReachesAllAndFollowsTheLowest) {
  const SurvivorKnowledge knows(2, 4);
  EXPECT_THAT(knows.base().ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(knows.reached().ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(knows.leader(), 0);
  EXPECT_THAT(knows.not_called(), ElementsAre(0, 1, 3)) << "the others, not this rank";
}

TEST(SurvivorKnowledge, ItFollowsTheLowestRankThatItReaches) {
  SurvivorKnowledge knows(2, 4);
  EXPECT_TRUE(knows.AddCut(0));
  EXPECT_FALSE(knows.AddCut(0));
  EXPECT_EQ(knows.leader(), 1);
  EXPECT_TRUE(knows.AddGone(1));
  EXPECT_FALSE(knows.AddGone(1));
  EXPECT_EQ(knows.leader(), 2);
  EXPECT_THAT(knows.cut().ranks(), ElementsAre(0, 1)) << "a rank that is gone is also cut";
  EXPECT_THAT(knows.gone().ranks(), ElementsAre(1));
}

TEST(SurvivorKnowledge, TheNextAgreementKeepsOnlyWhoIsCutAndGone) {
  SurvivorKnowledge knows(0, 4);
  knows.own().called = true;
  knows.own().accepted.ballot.leader = 0;
  knows.AddExcluded(2);
  knows.AddGone(3);
  knows.Take(1, Called(4));
  knows.Begin(Ranks(4, {0, 1, 2}));
  EXPECT_THAT(knows.base().ranks(), ElementsAre(0, 1, 2));
  EXPECT_THAT(knows.gone().ranks(), ElementsAre(3));
  EXPECT_THAT(knows.cut().ranks(), ElementsAre(3));
  EXPECT_FALSE(knows.own().called);
  EXPECT_EQ(knows.own().accepted.ballot, SurvivorBallot());
  EXPECT_TRUE(knows.own().exclude.empty());
  EXPECT_THAT(knows.not_called(), ElementsAre(1, 2));
}

TEST(SurvivorKnowledge, AllFollowALeaderWhenTheyHaveCalledAndCutTheLowerRanks) {
  SurvivorKnowledge knows(1, 4);
  knows.own().called = true;
  knows.AddCut(0);
  knows.Take(2, Called(4, {0}));
  EXPECT_FALSE(knows.AllFollow()) << "rank 3 has not made the call";
  knows.Take(3, Called(4));
  EXPECT_FALSE(knows.AllFollow()) << "rank 3 follows rank 0";
  knows.Take(3, Called(4, {0}));
  EXPECT_TRUE(knows.AllFollow());
  knows.AddExcluded(2);
  EXPECT_FALSE(knows.AllFollow()) << "rank 2 does not know yet that it is excluded";
  knows.AddGone(2);
  EXPECT_TRUE(knows.AllFollow());
}

TEST(SurvivorKnowledge, AQuorumIsMoreThanHalfOrTheHalfOfTheLowestOrAllThatLive) {
  SurvivorKnowledge knows(0, 4);
  EXPECT_TRUE(knows.IsQuorum(Ranks(4, {1, 2, 3})));
  EXPECT_TRUE(knows.IsQuorum(Ranks(4, {0, 3})));
  EXPECT_FALSE(knows.IsQuorum(Ranks(4, {1, 2})));
  EXPECT_FALSE(knows.IsQuorum(Ranks(4, {0})));
  knows.AddGone(1);
  knows.AddGone(2);
  EXPECT_FALSE(knows.IsQuorum(Ranks(4, {0})));
  knows.AddGone(3);
  EXPECT_TRUE(knows.IsQuorum(Ranks(4, {0})));
}

TEST(SurvivorKnowledge, WithAnyEverySetIsAQuorum) {
  SurvivorKnowledge knows(3, 4);
  knows.own().any = true;
  EXPECT_TRUE(knows.IsQuorum(Ranks(4, {3})));
}

TEST(SurvivorKnowledge, TheRankWithTheMostBrokenPathsIsDropped) {
  SurvivorKnowledge knows(0, 5);
  knows.Take(1, Called(5, {2}));
  knows.Take(3, Called(5, {1}));
  const RankSet all = RankSet::All(5);
  EXPECT_THAT(knows.Connected(all, 0).ranks(), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(knows.Connected(all, 1).ranks(), ElementsAre(0, 1, 4)) << "rank 1 must stay";
}

TEST(SurvivorKnowledge, OfTwoThatDoNotReachEachOtherTheHigherIsDropped) {
  SurvivorKnowledge knows(0, 3);
  knows.Take(2, Called(3, {1}));
  EXPECT_THAT(knows.Connected(RankSet::All(3), -1).ranks(), ElementsAre(0, 1));
  knows.AddCut(2);
  knows.AddCut(1);
  EXPECT_THAT(knows.Connected(RankSet::All(3), 0).ranks(), ElementsAre(0));
}

TEST(SurvivorKnowledge, ADecisionHasTheContextsAndFlagsOfItsMembersOnly) {
  SurvivorKnowledge knows(0, 3);
  knows.own().called = true;
  knows.own().context = 10;
  knows.own().flag = 7;
  SurvivorReport report = Called(3);
  report.context = 11;
  report.flag = 0;
  knows.Take(1, report);
  report.context = 12;
  report.flag = 5;
  knows.Take(2, report);
  const SurvivorDecision decision = knows.DecisionFor(Ranks(3, {0, 2}));
  EXPECT_EQ(decision.error, Error::kNone);
  EXPECT_THAT(decision.members.ranks(), ElementsAre(0, 2));
  EXPECT_THAT(decision.contexts, ElementsAre(10, 12));
  EXPECT_EQ(decision.flag, 5u);
}

TEST(SurvivorKnowledge, TheFirstRankThatDiffersIsTheCulprit) {
  SurvivorKnowledge knows(0, 4);
  knows.own().kind = SurvivorCallKind::kShrink;
  knows.own().context = 10;
  SurvivorReport same = Called(4);
  same.kind = SurvivorCallKind::kShrink;
  same.context = 11;
  knows.Take(1, same);
  SurvivorReport other = same;
  other.any = true;
  knows.Take(2, other);
  knows.Take(3, Called(4));
  SurvivorDecision decision = knows.DecisionFor(RankSet::All(4));
  EXPECT_EQ(decision.error, Error::kPolicies);
  EXPECT_EQ(decision.culprit, 2);
  knows.Take(2, same);
  decision = knows.DecisionFor(RankSet::All(4));
  EXPECT_EQ(decision.error, Error::kKinds);
  EXPECT_EQ(decision.culprit, 3);
  same.context = 0;
  knows.Take(3, same);
  decision = knows.DecisionFor(RankSet::All(4));
  EXPECT_EQ(decision.error, Error::kContexts);
  EXPECT_EQ(decision.culprit, 3);
}

}  // namespace
}  // namespace entrain
