#include "lib/train/trigger.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

// The steps below `steps` at which a training run exchanges.
std::vector<int64_t> ExchangesUpTo(SyncTrigger& trigger, int64_t steps, int64_t request_at = -1) {
  std::vector<int64_t> at;
  StepInfo info;
  for (info.step = 0; info.step < steps; ++info.step) {
    info.requested = info.step == request_at;
    // Twice: a second forward pass at the same step.
    for (int forward = 0; forward < 2; ++forward) {
      if (*trigger.Due(info)) {
        at.push_back(info.step);
        info.last_sync_step = info.step;
      }
    }
  }
  return at;
}

TEST(StepTrigger, FiresAtWarmupPlusMultiplesOfTheInterval) {
  StepTrigger trigger(3, 4);
  EXPECT_THAT(ExchangesUpTo(trigger, 14), testing::ElementsAre(3, 7, 11));
}

TEST(StepTrigger, FiresAtOnceWithoutWarmup) {
  StepTrigger trigger(0, 5);
  EXPECT_THAT(ExchangesUpTo(trigger, 11), testing::ElementsAre(0, 5, 10));
}

TEST(StepTrigger, FiresAtEveryStepOnlyOnce) {
  StepTrigger trigger(1, 1);
  EXPECT_THAT(ExchangesUpTo(trigger, 4), testing::ElementsAre(1, 2, 3));
}

TEST(StepTrigger, RequestFiresBetweenButNotInWarmup) {
  StepTrigger trigger(2, 4);
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 3), testing::ElementsAre(2, 3, 6));
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 1), testing::ElementsAre(2, 6));
  EXPECT_THAT(ExchangesUpTo(trigger, 8, 6), testing::ElementsAre(2, 6));
}

}  // namespace
}  // namespace entrain
