#include "examples/trainer/conditions.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

using testing::HasSubstr;

TEST(Conditions, AtRandomOneReplicaIsLateInEachStepAndAllKnowWhich) {
  const ConditionOptions options = {.straggler = "random", .straggler_ms = 8};
  const Conditions one(options, 7, 4);
  const Conditions same(options, 7, 4);
  const Conditions other(options, 8, 4);
  std::vector<int> times(4);
  int unlike = 0;
  for (int64_t step = 1; step <= 4000; ++step) {
    ASSERT_TRUE(one.Late(step).has_value());
    ++times.at(static_cast<size_t>(*one.Late(step)));
    EXPECT_EQ(one.Late(step), same.Late(step));
    unlike += one.Late(step) != other.Late(step) ? 1 : 0;
    int late = 0;
    for (int replica = 0; replica < 4; ++replica) {
      late += one.Rest(step, replica, 0.0) > 0.0 ? 1 : 0;
    }
    EXPECT_EQ(late, 1) << step;
  }
  // A thousand each, with a standard deviation of 27.
  EXPECT_GT(*std::min_element(times.begin(), times.end()), 880);
  EXPECT_LT(*std::max_element(times.begin(), times.end()), 1120);
  EXPECT_NEAR(unlike, 3000, 120);
}

TEST(Conditions, AFixedReplicaIsAlwaysLateAndNobodyUnlessAsked) {
  const Conditions fixed({.straggler = "fixed", .straggler_ms = 8, .straggler_replica = 2}, 1, 4);
  const Conditions nobody({}, 1, 4);
  for (int64_t step = 1; step <= 50; ++step) {
    EXPECT_EQ(fixed.Late(step), 2);
    EXPECT_EQ(nobody.Late(step), std::nullopt);
    EXPECT_EQ(nobody.Rest(step, 2, 0.0), 0.0);
  }
}

TEST(Conditions, AStepIsFilledUpToItsLengthAndTheDelayComesOnTop) {
  const Conditions conditions(
      {.step_ms = 20, .straggler = "fixed", .straggler_ms = 8, .straggler_replica = 1}, 1, 2);
  EXPECT_NEAR(conditions.Rest(1, 0, 0.015), 0.005, 1e-12);
  EXPECT_NEAR(conditions.Rest(1, 1, 0.015), 0.013, 1e-12);
  EXPECT_EQ(conditions.Rest(1, 0, 0.5), 0.0);
  EXPECT_NEAR(conditions.Rest(1, 1, 0.5), 0.008, 1e-12);
}

TEST(Conditions, OneIntervalInSoManyIsShuffledOfOneReplica) {
  const Conditions conditions({.shuffle_labels_every = 5, .shuffle_labels_replica = 1}, 1, 2);
  std::set<int64_t> shuffled;
  for (int64_t interval = 0; interval <= 16; ++interval) {
    EXPECT_FALSE(conditions.Shuffles(interval, 0));
    if (conditions.Shuffles(interval, 1)) {
      shuffled.insert(interval);
    }
  }
  EXPECT_EQ(shuffled, (std::set<int64_t>{5, 10, 15}));  // 0 is warm-up
  EXPECT_FALSE(Conditions({}, 1, 2).Shuffles(5, 0));
}

TEST(Conditions, ShuffledLabelsAreTheSameLabelsElsewhere) {
  const Conditions conditions({.shuffle_labels_every = 1}, 1, 1);
  Batch batch;
  for (int i = 0; i < 200; ++i) {
    batch.inputs.push_back(static_cast<uint8_t>(i));
    batch.targets.push_back(static_cast<uint8_t>(i + 1));
  }
  Batch first = batch;
  Batch again = batch;
  Batch next = batch;
  conditions.Shuffle(0, 1, &first);
  conditions.Shuffle(0, 1, &again);
  conditions.Shuffle(0, 2, &next);
  EXPECT_EQ(first.inputs, batch.inputs);
  EXPECT_EQ(first.targets, again.targets);
  EXPECT_NE(first.targets, next.targets);
  int kept = 0;
  for (size_t i = 0; i < batch.targets.size(); ++i) {
    kept += first.targets[i] == batch.targets[i] ? 1 : 0;
  }
  EXPECT_LT(kept, 10);  // 1 is expected
  std::sort(first.targets.begin(), first.targets.end());
  EXPECT_EQ(first.targets, batch.targets);
}

TEST(Conditions, ReplicasThatThereAreNotAreRefused) {
  Conditions({.straggler_replica = 1, .shuffle_labels_replica = 1}, 1, 2).CheckReplicas();
  const auto says = [](const ConditionOptions& options) -> std::string {
    try {
      Conditions(options, 1, 2).CheckReplicas();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(says({.straggler_replica = 2}), HasSubstr("--straggler-replica 2 is none of the 2"));
  EXPECT_THAT(says({.shuffle_labels_replica = 3}), HasSubstr("--shuffle-labels-replica 3 is none"));
}

}  // namespace
}  // namespace trainer
