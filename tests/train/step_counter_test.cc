#include "lib/train/edit/step_counter.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/train/visited.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Layers 0, 2 and 3 of four train. A step has two micro-batches. Warm-up has two steps.
StepCounter Counter(int64_t warmup = 0) {
  return {warmup, 2, 4, {0, 2, 3}, 10};
}

void Step(StepCounter& counter) {
  counter.EndStep(10);
}

TEST(StepCounter, AStepHasItsMicrobatches) {
  StepCounter counter = Counter();
  EXPECT_THAT(std::string(counter.CheckAllMicrobatches().message()),
              HasSubstr("edit: end_step 0: begin_forward was called for 0 of the step's"));
  EXPECT_EQ(counter.BeginMicrobatch(true), absl::OkStatus());
  EXPECT_EQ(counter.BeginMicrobatch(true), absl::OkStatus());  // begins the step again
  EXPECT_FALSE(counter.CheckAllMicrobatches().ok());
  EXPECT_EQ(counter.BeginMicrobatch(false), absl::OkStatus());
  EXPECT_EQ(counter.CheckAllMicrobatches(), absl::OkStatus());
  EXPECT_THAT(std::string(counter.BeginMicrobatch(false).message()),
              HasSubstr("micro-batch 3 of step 0"));
  EXPECT_EQ(counter.CheckAllMicrobatches(), absl::OkStatus()) << "what was refused does not count";
}

TEST(StepCounter, AStandingSaysWhatWasDoneSinceAndCountsBeginAnew) {
  StepCounter counter = Counter();
  counter.Begin();
  Step(counter);
  Step(counter);
  ASSERT_EQ(counter.Record(100, 2, 3), absl::OkStatus());
  ASSERT_EQ(counter.Record(20, std::nan(""), 0), absl::OkStatus());  // a metric without weight
  counter.Wish(kWantStop);
  const Standing first = counter.TakeStanding({0, 2, 3});
  EXPECT_EQ(first.round, 0u);
  EXPECT_EQ(first.steps, 2u);
  EXPECT_EQ(first.steps_since, 2u);
  EXPECT_EQ(first.tokens_since, 120u);
  EXPECT_EQ(first.flags, kWantStop | kCounted);
  EXPECT_EQ(first.metric_sum, 6);
  EXPECT_EQ(first.metric_weight, 3);
  EXPECT_EQ(counter.last_rendezvous_step(), 2);
  Step(counter);
  const Standing second = counter.TakeStanding({0, 2, 3});
  EXPECT_EQ(second.round, 1u);
  EXPECT_EQ(second.steps_since, 1u);
  EXPECT_EQ(second.tokens_since, 0u);
  EXPECT_EQ(second.flags, 0u);
  EXPECT_EQ(second.metric_weight, 0);
}

TEST(StepCounter, WhatARendezvousDidNotExchangeCountsForTheNext) {
  StepCounter counter = Counter();
  counter.Begin();
  Step(counter);
  ASSERT_EQ(counter.Record(5, 0, 0), absl::OkStatus());
  counter.TakeBack(counter.TakeStanding({0, 2, 3}));
  Step(counter);
  const Standing standing = counter.TakeStanding({0, 2, 3});
  EXPECT_EQ(standing.steps_since, 2u);
  EXPECT_EQ(standing.tokens_since, 5u);
  EXPECT_EQ(standing.flags, kCounted);
}

TEST(StepCounter, RecordRefusesWhatIsNoCountAndNoWeight) {
  StepCounter counter = Counter();
  EXPECT_THAT(std::string(counter.Record(-1, 0, 0).message()), HasSubstr("edit: tokens: -1"));
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(counter.Record(1, 0, weight))) << weight;
  }
  EXPECT_EQ(counter.TakeStanding({0}).flags, 0u) << "nothing was counted";
}

TEST(StepCounter, ARequestIsTakenOnce) {
  StepCounter counter = Counter();
  counter.Request();
  EXPECT_TRUE(counter.requested() && counter.Moment().requested);
  EXPECT_TRUE(counter.TakeRequest());
  EXPECT_FALSE(counter.TakeRequest());
}

TEST(StepCounter, AnchorsAreMadeAtTheEndOfWarmupOnly) {
  StepCounter counter = Counter(1);
  EXPECT_TRUE(counter.in_warmup());
  EXPECT_THAT(std::string(counter.CheckMayLeave().message()),
              HasSubstr("at step 0 of 1 of warm-up"));
  Step(counter);
  EXPECT_EQ(counter.CheckMayBegin(), absl::OkStatus());
  EXPECT_EQ(counter.last_rendezvous_step(), -1);
  Step(counter);
  EXPECT_THAT(std::string(counter.CheckMayBegin().message()),
              HasSubstr("the first step after warm-up, step 1, and this is step 2"));
  EXPECT_EQ(counter.since_warmup(), 1);
}

TEST(StepCounter, AReplicaThatLeavesExchangesWhatIsLeftOver) {
  StepCounter counter = Counter();
  counter.Begin();
  EXPECT_THAT(counter.LeftOver(), ElementsAre(0, 2, 3)) << "nothing: a rendezvous about leaving";
  Step(counter);
  counter.TakeStanding({2});
  EXPECT_THAT(counter.LeftOver(), ElementsAre(0, 3)) << "the others' layers";
  ASSERT_EQ(counter.CheckMayLeave(), absl::OkStatus());
  counter.Leave();
  EXPECT_TRUE(counter.left());
  EXPECT_THAT(std::string(counter.CheckMayLeave().message()), HasSubstr("has left already"));
  const Standing standing = counter.TakeStanding({0, 3});
  EXPECT_EQ(standing.steps_since, 1u) << "there will be no other time to exchange them";
  EXPECT_EQ(standing.flags, kLeaving);
  counter.Keep({3});  // kept by a mixed merge
  EXPECT_THAT(counter.LeftOver(), ElementsAre(3));
}

TEST(StepCounter, GradientsThatWereReducedSinceTheStepBeganAreNoPartOfACheckpoint) {
  StepCounter counter = Counter();
  EXPECT_EQ(counter.CheckNoneReduced(10), absl::OkStatus());
  EXPECT_THAT(std::string(counter.CheckNoneReduced(11).message()),
              HasSubstr("gradients of step 0"));
  counter.EndStep(11);
  EXPECT_EQ(counter.CheckNoneReduced(11), absl::OkStatus());
}

TEST(StepCounter, GoesOnFromWhatWasLoaded) {
  StepCounter counter = Counter();
  Visited visited;
  counter.VisitSteps(visited);
  counter.VisitStanding(visited);
  counter.VisitUnshared(visited);
  EXPECT_THAT(visited.names, ElementsAre("steps", "last_sync_step", "base_step", "rendezvous",
                                         "tokens", "metric_sum", "metric_weight", "unshared"));
  visited.Value("steps") = visited.Value("last_sync_step") = 9;
  visited.Value("base_step") = 6;
  visited.Value("rendezvous") = 3;
  counter.Request();
  counter.Wish(kWantStop);
  counter.GoOn(/*exchanged=*/false);
  EXPECT_FALSE(counter.requested());
  EXPECT_EQ(counter.step(), 9);
  Standing standing = counter.TakeStanding({0});
  EXPECT_EQ(standing.round, 3u);
  EXPECT_EQ(standing.steps_since, 3u);
  EXPECT_EQ(standing.flags, 0u);
  EXPECT_THAT(visited.Values("unshared"), ElementsAre(0, 0, 1, 1));
  counter.GoOn(/*exchanged=*/true);
  EXPECT_EQ(counter.base_step(), 9);
  EXPECT_THAT(visited.Values("unshared"), ElementsAre(0, 0, 0, 0));
}

TEST(StepCounter, WhatIsOfNoRendezvousIsNotLoaded) {
  const StepCounter counter = Counter(4);
  EXPECT_EQ(counter.CheckLoaded(5, 5, 3, 1, 1), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(counter.CheckLoaded(5, 4, 3, 1, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(counter.CheckLoaded(5, 5, 6, 1, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(counter.CheckLoaded(5, 5, 3, -1, 1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(counter.CheckLoaded(3, 3, 3, 1, 1)));
}

}  // namespace
}  // namespace entrain
