// The phases of rounds, their numbers and their results, without ranks.
#include "lib/train/acco/round_state.h"

#include <cmath>

#include "gtest/gtest.h"

#include "lib/train/acco/channel_transfer.h"

namespace entrain {
namespace {

ChannelOptions Limited(int64_t commits) {
  ChannelOptions options;
  options.limit = commits;
  return options;
}

// Makes a round in which all ranks together have `microbatches` of 10 tokens.
void Make(RoundState& state, RoundKind kind, int64_t microbatches) {
  state.Begin(kind);
  state.SetOutcome({.counts = {.microbatches = microbatches, .tokens = 10 * microbatches},
                    .result = {.committed = Commits(kind), .microbatches = microbatches}});
  state.Commit();
  state.Finish();
}

TEST(RoundState, ARoundHasTheNextNumberUntilItIsFinished) {
  RoundState state(Limited(0));
  EXPECT_EQ(state.phase(), RoundPhase::kFinished);
  EXPECT_EQ(state.number(), 0);
  state.Begin(RoundKind::kCommit);
  EXPECT_EQ(state.phase(), RoundPhase::kBegun);
  EXPECT_EQ(state.number(), 1);
  state.Reach(RoundPhase::kDecided);
  EXPECT_EQ(state.number(), 1);
  state.Commit();
  state.Finish();
  EXPECT_EQ(state.phase(), RoundPhase::kFinished);
  EXPECT_EQ(state.number(), 1);
}

TEST(RoundState, AnEstimateCountsNoGradients) {
  RoundState state(Limited(0));
  Make(state, RoundKind::kEstimate, 3);
  EXPECT_EQ(state.result().rounds, 1);
  EXPECT_EQ(state.result().commits, 0);
  EXPECT_EQ(state.result().gradients, 0);
  EXPECT_EQ(state.result().microbatches, 3);
  Make(state, RoundKind::kCommit, 5);
  EXPECT_EQ(state.result().rounds, 2);
  EXPECT_EQ(state.result().commits, 1);
  EXPECT_EQ(state.result().gradients, 5);
  EXPECT_EQ(state.result().tokens, 50);
}

TEST(RoundState, TheResultsChangeWhenTheRoundIsFinished) {
  RoundState state(Limited(0));
  state.Begin(RoundKind::kCommit);
  state.SetOutcome({.counts = {}, .result = {.microbatches = 2, .lr = 0.5}});
  EXPECT_TRUE(std::isnan(state.outcome().result.grad_norm));
  state.Clip(4, 0.25);
  EXPECT_EQ(state.result().microbatches, 0);
  EXPECT_EQ(state.result().clip_factor, 1);
  state.Finish();
  EXPECT_EQ(state.result().microbatches, 2);
  EXPECT_EQ(state.result().lr, 0.5);
  EXPECT_EQ(state.result().grad_norm, 4);
  EXPECT_EQ(state.result().clip_factor, 0.25);
}

TEST(RoundState, TheRunEndsOnlyWithACommit) {
  RoundState state(Limited(2));
  Make(state, RoundKind::kCommit, 1);
  EXPECT_FALSE(state.EndsRun());
  Make(state, RoundKind::kPredict, 1);
  EXPECT_TRUE(state.EndsRun());
  Make(state, RoundKind::kEstimate, 1);
  EXPECT_FALSE(state.EndsRun());
}

TEST(RoundState, ANewcomerGoesOnFromTheMembersTotals) {
  RoundState member(Limited(3)), newcomer(Limited(3));
  Make(member, RoundKind::kCommit, 4);
  Make(member, RoundKind::kCommit, 6);
  ChannelTotals totals = member.Totals();
  totals.joins = 7;
  newcomer.GoOn(totals);
  EXPECT_TRUE(newcomer.result().committed);
  EXPECT_EQ(newcomer.result().rounds, 2);
  EXPECT_EQ(newcomer.result().gradients, 10);
  EXPECT_EQ(newcomer.result().microbatches, 6);
  EXPECT_EQ(newcomer.result().joins, 7);
  EXPECT_EQ(newcomer.number(), 2);
  Make(newcomer, RoundKind::kCommit, 1);
  EXPECT_EQ(newcomer.result().gradients, 11);
  EXPECT_TRUE(newcomer.EndsRun());
}

}  // namespace
}  // namespace entrain
