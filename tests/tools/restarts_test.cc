#include "tools/restarts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;
using Verdict = Restarts::Verdict;

constexpr Restarts::State kThreeMembers{.running = 3, .members = true, .finished = false};

TEST(Restarts, ARankIsRestartedUntilItsRestartsAreUsedUp) {
  Restarts restarts(4, {.max_restarts = 2, .min_ranks = 1});
  for (int i = 1; i <= 2; ++i) {
    const auto decision = restarts.OnFailure(1, kThreeMembers);
    EXPECT_EQ(decision.verdict, Verdict::kRestart);
    EXPECT_THAT(decision.text, HasSubstr("restarting it"));
    EXPECT_EQ(restarts.count(1), i);
  }
  const auto decision = restarts.OnFailure(1, kThreeMembers);
  EXPECT_EQ(decision.verdict, Verdict::kGoOn);
  EXPECT_EQ(decision.text, "its 2 restarts are used up, going on with 3 ranks");
  // Each rank has its own.
  EXPECT_EQ(restarts.OnFailure(2, kThreeMembers).verdict, Verdict::kRestart);
  EXPECT_EQ(restarts.count(0), 0);
}

TEST(Restarts, TheJobEndsBelowTheLeastNumberOfRanks) {
  Restarts restarts(4, {.max_restarts = 1, .min_ranks = 4});
  EXPECT_EQ(restarts.OnFailure(0, kThreeMembers).verdict, Verdict::kRestart);
  const auto used_up = restarts.OnFailure(0, kThreeMembers);
  EXPECT_EQ(used_up.verdict, Verdict::kEnd);
  EXPECT_EQ(used_up.text, "its 1 restarts are used up, and 3 ranks are less than --min-ranks 4");
  const auto two_at_once = restarts.OnFailure(1, {.running = 2, .members = true});
  EXPECT_EQ(two_at_once.verdict, Verdict::kEnd);
  EXPECT_EQ(two_at_once.text, "3 ranks are less than --min-ranks 4");
  EXPECT_EQ(restarts.count(1), 0);
}

TEST(Restarts, WithoutAMemberThereIsNothingToJoin) {
  Restarts restarts(4, {});
  const auto decision = restarts.OnFailure(0, {.running = 3, .members = false});
  EXPECT_EQ(decision.verdict, Verdict::kEnd);
  EXPECT_THAT(decision.text, HasSubstr("no other rank has a communicator"));
}

TEST(Restarts, AfterARankHasFinishedAFailureEndsTheJobUnlessTheProcessWasANewcomer) {
  Restarts restarts(4, {});
  const Restarts::State late{.running = 2, .members = true, .finished = true, .joined = true};
  EXPECT_EQ(restarts.OnFailure(0, late).verdict, Verdict::kEnd);
  Restarts::State stranger = late;
  stranger.joined = false;
  EXPECT_EQ(restarts.OnFailure(0, stranger).verdict, Verdict::kEnd);  // in its first life
  EXPECT_EQ(restarts.OnFailure(0, kThreeMembers).verdict, Verdict::kRestart);
  EXPECT_EQ(restarts.OnFailure(0, stranger).verdict, Verdict::kGoOn);
  EXPECT_EQ(restarts.OnFailure(0, late).verdict, Verdict::kEnd);
}

}  // namespace
}  // namespace entrain
