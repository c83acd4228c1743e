// Decisions about replicas from tables of rendezvous. The weights themselves: penalty_test.
#include "lib/train/edit/verdicts.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

constexpr int kReplicas = 3;

// A slab of three layers. Layer 1 does not train.
Slab ThreeLayers() {
  const std::vector<uint8_t> frozen = {0, 1, 0};
  return Slab::Make({8, 8, 8}, 1, 0, frozen).value();
}

// A table of layers 0 and 2 in which all replicas have made four steps.
NormTable Table(const std::vector<double>& norms) {
  NormTable table;
  table.replicas = {0, 1, 2};
  table.layers = {0, 2};
  table.standings.assign(kReplicas, {.steps = 4, .steps_since = 4});
  table.norms = norms;
  return table;
}

EditOptions Uniform() {
  EditOptions options;
  options.normalize = true;
  return options;
}

EditOptions WithDetectors() {
  EditOptions options = Uniform();
  options.skip_anomaly = true;
  options.ewma_warmup_steps = 2;
  return options;
}

// Norms of `level`, a little different from one call to the next.
NormTable Level(double level, int call) {
  const double norm = level * (1 + 0.01 * (call % 3));
  return Table({norm, norm, norm, norm, norm, norm});
}

TEST(Verdicts, ReportsHaveEveryReplicaAndTotals) {
  const Slab slab = ThreeLayers();
  const EditOptions options = Uniform();
  Verdicts verdicts(slab, options);
  // Replica 1 is absent. Replica 2's own detector has rejected layer 2.
  NormTable table = Table({3, 4, 5, 6, 7, -8});
  table.standings[1].steps_since = 0;
  verdicts.Judge(table, /*me=*/2, /*most=*/5);
  EXPECT_EQ(verdicts.of(0).accepted, 2);
  EXPECT_THAT(verdicts.of(0).weights, ElementsAre(0.5, 0, 0.5));
  EXPECT_THAT(verdicts.report(0).norms, ElementsAre(3, 5, 7, 0, 0));
  EXPECT_THAT(verdicts.report(0).weights, ElementsAre(0.5, 0, 0.5, 0, 0));
  EXPECT_TRUE(verdicts.report(0).accepted);
  EXPECT_THAT(verdicts.report(2).weights, ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(verdicts.report(2).norms, ElementsAre(4, 6, 8, 0, 0));
  EXPECT_FALSE(verdicts.report(2).accepted);
  EXPECT_TRUE(verdicts.report(1).norms.empty()) << "layer 1 was not in the table";
  verdicts.Judge(Table({1, 1, 1, 1, 1, 1}), 2, 5);
  EXPECT_EQ(verdicts.report(2).brought_ever, 5);
  EXPECT_EQ(verdicts.report(2).accepted_ever, 4);
}

TEST(Verdicts, AnAbsentReplicaIsNotRejected) {
  const Slab slab = ThreeLayers();
  const EditOptions options = Uniform();
  Verdicts verdicts(slab, options);
  NormTable table = Table({3, 4, 5, 6, 7, 8});
  table.standings[1].steps_since = 0;
  verdicts.Judge(table, /*me=*/1, kReplicas);
  EXPECT_TRUE(verdicts.report(0).accepted);
}

TEST(Verdicts, ALostReplicaIsTakenOutOfWeightsAndTotals) {
  const Slab slab = ThreeLayers();
  const EditOptions options = Uniform();
  Verdicts verdicts(slab, options);
  const NormTable table = Table({3, 4, 5, 6, 7, 8});
  verdicts.Judge(table, 0, kReplicas);
  verdicts.JudgeAgain(table.Of({0, 2}), 2, kReplicas, /*counts=*/true);
  EXPECT_THAT(verdicts.of(2).weights, ElementsAre(0.5, 0.5)) << "by row of the smaller table";
  EXPECT_THAT(verdicts.report(2).weights, ElementsAre(0.5, 0, 0.5));
  EXPECT_EQ(verdicts.report(2).brought_ever, 2);
  EXPECT_EQ(verdicts.report(0).brought_ever, 3) << "another layer";
  // The result of other ranks is taken over: the report keeps what these ranks have counted.
  verdicts.JudgeAgain(table.Of({0}), 0, kReplicas, /*counts=*/false);
  EXPECT_THAT(verdicts.of(0).weights, ElementsAre(1));
  EXPECT_THAT(verdicts.report(0).weights, Each(DoubleNear(1.0 / 3, 1e-15)));
  EXPECT_EQ(verdicts.report(0).brought_ever, 3);
  verdicts.RejectAll(0);
  EXPECT_EQ(verdicts.of(0).accepted, 0);
}

TEST(Verdicts, OnlyTheReplicasOwnDetectorRejects) {
  const Slab slab = ThreeLayers();
  const EditOptions options = WithDetectors();
  Verdicts verdicts(slab, options);
  EXPECT_FALSE(verdicts.Rejects(0, 1e6)) << "during warm-up";
  for (int i = 0; i < 20; ++i) {
    verdicts.Judge(Level(1, i), 0, kReplicas);
  }
  EXPECT_TRUE(verdicts.Rejects(0, 1e6));
  EXPECT_FALSE(verdicts.Rejects(0, 1.01));
  EXPECT_TRUE(verdicts.Rejects(0, NAN));
  // Another replica's outlier arrives with its sign, and this replica's detector ignores the norm.
  verdicts.Judge(Table({1, 1, -1e6, -1e6, 1, 1}), 0, kReplicas);
  EXPECT_EQ(verdicts.report(0).weights[1], 0);
  EXPECT_FALSE(verdicts.Rejects(0, 1.01));
  EXPECT_LT(verdicts.report(0).score.z, verdicts.report(0).score.limit);
}

TEST(Verdicts, AfterTwoExchangesThatRejectAllTheWarmUpRestarts) {
  const Slab slab = ThreeLayers();
  const EditOptions options = WithDetectors();
  Verdicts verdicts(slab, options);
  for (int i = 0; i < 20; ++i) {
    verdicts.Judge(Level(1, i), 0, kReplicas);
  }
  verdicts.Judge(Level(-1e6, 0), 0, kReplicas);
  EXPECT_EQ(verdicts.of(0).accepted, 0);
  EXPECT_TRUE(verdicts.Rejects(0, 1e6));
  verdicts.Judge(Level(-1e6, 1), 0, kReplicas);
  EXPECT_FALSE(verdicts.Rejects(0, 1e6)) << "during the new warm-up";
}

TEST(Verdicts, ANewcomersWeightGrowsUntilItIsFull) {
  const Slab slab = ThreeLayers();
  EditOptions options = Uniform();
  options.newcomer_warmup = 2;
  Verdicts verdicts(slab, options);
  EXPECT_EQ(verdicts.Growing({0, 2}), 0u) << "no newcomer";
  verdicts.BeginGrowing();
  EXPECT_EQ(verdicts.Growing({0, 2}), 1u);
  NormTable table = Table({1, 1, 1, 1, 1, 1});
  table.standings[2].flags = verdicts.Growing({0, 2}) << kNewShift;
  verdicts.Judge(table, /*me=*/2, kReplicas);
  EXPECT_THAT(verdicts.report(0).weights[2], DoubleNear(1.0 / 7, 1e-15)) << "1/3 of the others'";
  // An exchange without steps of this replica does not count.
  table.standings[2] = {.flags = verdicts.Growing({0, 2}) << kNewShift};
  verdicts.Judge(table, 2, kReplicas);
  EXPECT_EQ(verdicts.Growing({0, 2}), 2u);
  // A fragment with layer 0 alone counts for layer 0. The smallest number decides.
  NormTable fragment = Table({1, 1, 1});
  fragment.layers = {0};
  verdicts.Judge(fragment, 2, kReplicas);
  EXPECT_EQ(verdicts.Growing({0}), 0u);
  EXPECT_EQ(verdicts.Growing({0, 2}), 2u);
  verdicts.Adopt(/*portable=*/true);
  EXPECT_EQ(verdicts.Growing({0, 2}), 0u);
}

TEST(Verdicts, LoadingForgetsReports) {
  const Slab slab = ThreeLayers();
  const EditOptions options = Uniform();
  Verdicts verdicts(slab, options);
  verdicts.Judge(Table({3, 4, 5, 6, 7, 8}), 0, kReplicas);
  verdicts.Adopt(/*portable=*/false);
  EXPECT_TRUE(verdicts.report(0).norms.empty());
}

}  // namespace
}  // namespace entrain
