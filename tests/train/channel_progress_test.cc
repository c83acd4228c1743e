#include <utility>

#include "gtest/gtest.h"

#include "lib/train/acco/round_state.h"

namespace entrain {
namespace {

TEST(ChannelProgress, CountsCommitsInThreeUnits) {
  ChannelProgress progress(ProgressUnit::kCommits, 0);
  progress.EndRound();  // an estimate
  progress.Commit({.microbatches = 4, .tokens = 100});
  progress.EndRound();
  progress.Commit({.microbatches = 3, .tokens = 50});
  progress.EndRound();
  EXPECT_EQ(progress.rounds(), 3);
  EXPECT_EQ(progress.In(ProgressUnit::kCommits), 2);
  EXPECT_EQ(progress.In(ProgressUnit::kGradients), 7);
  EXPECT_EQ(progress.In(ProgressUnit::kTokens), 150);
  EXPECT_FALSE(progress.Done());
}

TEST(ChannelProgress, TheFirstCommitThatReachesTheLimitIsTheEnd) {
  for (const auto& [unit, limit] : {std::pair(ProgressUnit::kCommits, 2),
                                    {ProgressUnit::kGradients, 5},
                                    {ProgressUnit::kTokens, 101}}) {
    ChannelProgress progress(unit, limit);
    progress.Commit({.microbatches = 4, .tokens = 100});
    EXPECT_FALSE(progress.Done());
    progress.Commit({.microbatches = 3, .tokens = 50});
    EXPECT_TRUE(progress.Done());
  }
}

TEST(ChannelProgress, AnyRankThatStopsEndsTheRunUntilItIsForgotten) {
  ChannelProgress progress(ProgressUnit::kCommits, 0);
  progress.Commit({.microbatches = 1, .stops = 1});
  EXPECT_TRUE(progress.Done());
  progress.ForgetStops();
  EXPECT_FALSE(progress.Done());
}

}  // namespace
}  // namespace entrain
