// The table of delay_rule.h, row by row.
#include "lib/train/acco/delay_rule.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using enum RoundKind;
using testing::ElementsAre;

// Returns the kinds of the first rounds.
std::vector<RoundKind> Kinds(DelayRule rule, int64_t rounds) {
  std::vector<RoundKind> kinds;
  for (int64_t round = 0; round < rounds; ++round) {
    kinds.push_back(rule.Next(round));
    EXPECT_EQ(rule.kind(), kinds.back());
  }
  return kinds;
}

TEST(DelayRule, WarmupRoundsAreSynchronousCommitsWhateverTheMethod) {
  for (const DelayMethod method :
       {DelayMethod::kAcco, DelayMethod::kDpu, DelayMethod::kWp, DelayMethod::kZero1}) {
    const DelayRule rule(method, 2);
    EXPECT_TRUE(rule.Synchronous(0));
    EXPECT_TRUE(rule.Synchronous(1));
    EXPECT_EQ(rule.Synchronous(2), method == DelayMethod::kZero1);
    EXPECT_THAT(Kinds(rule, 2), ElementsAre(kCommit, kCommit));
  }
}

TEST(DelayRule, Zero1CommitsAndWaits) {
  const DelayRule rule(DelayMethod::kZero1, 0);
  EXPECT_TRUE(rule.Synchronous(0));
  EXPECT_TRUE(rule.Synchronous(100));
  EXPECT_THAT(Kinds(rule, 3), ElementsAre(kCommit, kCommit, kCommit));
}

TEST(DelayRule, DpuCommitsOneRoundLate) {
  const DelayRule rule(DelayMethod::kDpu, 0);
  EXPECT_FALSE(rule.Synchronous(0));
  EXPECT_THAT(Kinds(rule, 3), ElementsAre(kCommit, kCommit, kCommit));
}

TEST(DelayRule, WpPredictsAfterItsWarmup) {
  EXPECT_THAT(Kinds(DelayRule(DelayMethod::kWp, 1), 3), ElementsAre(kCommit, kPredict, kPredict));
}

TEST(DelayRule, AccoEstimatesWithHalfAAndCommitsWithAAndB) {
  EXPECT_THAT(Kinds(DelayRule(DelayMethod::kAcco, 0), 4),
              ElementsAre(kEstimate, kCommit, kEstimate, kCommit));
  EXPECT_THAT(Kinds(DelayRule(DelayMethod::kAcco, 3), 6),
              ElementsAre(kCommit, kCommit, kCommit, kEstimate, kCommit, kEstimate));
}

TEST(DelayRule, OnlyAnEstimateKeepsTheGradients) {
  EXPECT_FALSE(Commits(kEstimate));
  EXPECT_TRUE(Commits(kCommit));
  EXPECT_TRUE(Commits(kPredict));
  DelayRule rule(DelayMethod::kAcco, 0);
  EXPECT_FALSE(rule.half_held());
  rule.Next(0);
  EXPECT_TRUE(rule.half_held());
  rule.Next(1);
  EXPECT_FALSE(rule.half_held());
}

TEST(DelayRule, GoesOnFromWhatIsInTheAccumulatorWhateverTheRoundsNumber) {
  DelayRule rule(DelayMethod::kAcco, 0);
  rule.Restore(/*half_held=*/true);
  EXPECT_EQ(rule.Next(4), kCommit);
  rule.Restore(/*half_held=*/false);
  EXPECT_EQ(rule.Next(5), kEstimate);
}

}  // namespace
}  // namespace entrain
