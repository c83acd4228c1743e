// Snapshots of theta on the host: what a merge makes of theta, of both types, and late replicas.
#include "lib/train/edit/snapshots.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

using testing::ElementsAre;

constexpr int64_t kCount = 2;

// One layer with its anchor, its snapshots, and theta of one type.
struct Layer {
  Layer(const EditOptions& with, DType type)
      : options(with), slab(Slab::Make({kCount}, 1, 0).value()), memory(8 * kCount) {
    live = LayerArrays::OfSlab(slab, memory.data(), nullptr, type);
    Set({1, 2});
    EXPECT_TRUE(anchors.Create(live, 0).ok());
    EXPECT_TRUE(theta.Reserve().ok());
    EXPECT_TRUE(snapshots.ReserveMerge().ok());
  }
  void Set(const std::vector<float>& values) { live.Write(0, values.data(), kCount); }
  std::vector<float> Get() const {
    std::vector<float> values(kCount);
    live.Read(0, values.data(), kCount);
    return values;
  }
  void SetAnchor(const std::vector<float>& values) {
    std::memcpy(anchors.anchor(0), values.data(), kCount * sizeof(float));
  }

  const EditOptions options;
  const Slab slab;
  std::vector<std::byte> memory;
  LayerArrays live;
  Anchors anchors{slab};
  WideTheta theta{slab, live, anchors};
  Snapshots snapshots{slab, live, options, anchors, &theta};
};

EditOptions Overlap(OverlapMerge merge) {
  EditOptions options;
  options.overlap_steps = 2;
  options.overlap_merge = merge;
  options.overlap_mix = 0.25;
  return options;
}

class SnapshotsOf : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, SnapshotsOf, testing::Values(DType::kF32, DType::kBF16));

TEST_P(SnapshotsOf, AMergeAddsTheStepsMadeMeanwhileToTheNewAnchor) {
  Layer layer(Overlap(OverlapMerge::kAdd), GetParam());
  layer.Set({3, 5});
  ASSERT_TRUE(layer.snapshots.Take({0}).ok());
  EXPECT_EQ(layer.snapshots.of(0), nullptr);
  layer.snapshots.Use({0});
  EXPECT_THAT(std::vector<float>(layer.snapshots.of(0), layer.snapshots.of(0) + kCount),
              ElementsAre(3, 5));
  layer.Set({4, 4});
  layer.SetAnchor({10, 20});
  layer.snapshots.Merge({0});
  EXPECT_THAT(layer.Get(), ElementsAre(11, 19));
  EXPECT_FALSE(layer.snapshots.in_use(0));
}

TEST_P(SnapshotsOf, AMixWeighsThetaAndTheNewAnchor) {
  Layer layer(Overlap(OverlapMerge::kMix), GetParam());
  ASSERT_TRUE(layer.snapshots.Take({0}).ok());
  layer.snapshots.Use({0});
  layer.Set({4, 8});
  layer.SetAnchor({12, 16});
  layer.snapshots.Merge({0});
  EXPECT_THAT(layer.Get(), ElementsAre(10, 14));
}

TEST_P(SnapshotsOf, ARestartTrainsFromTheOldAnchorMeanwhile) {
  Layer layer(Overlap(OverlapMerge::kRestart), GetParam());
  layer.Set({3, 5});
  ASSERT_TRUE(layer.snapshots.Take({0}).ok());
  EXPECT_THAT(layer.Get(), ElementsAre(1, 2));
  layer.snapshots.Use({0});
  layer.Set({1.5, 2.5});
  layer.snapshots.KeepOldAnchor(0);
  layer.SetAnchor({10, 20});
  layer.snapshots.Merge({0});
  EXPECT_THAT(layer.Get(), ElementsAre(10.5, 20.5));
}

TEST_P(SnapshotsOf, ADroppedRestartPutsTheStepsOnTheSnapshot) {
  Layer layer(Overlap(OverlapMerge::kRestart), GetParam());
  layer.Set({3, 5});
  ASSERT_TRUE(layer.snapshots.Take({0}).ok());
  layer.snapshots.Use({0});
  layer.Set({1.5, 2.5});
  layer.snapshots.Drop({0});
  EXPECT_THAT(layer.Get(), ElementsAre(3.5, 5.5));
}

TEST_P(SnapshotsOf, ASnapshotThatWasNotFiniteIsReplacedByTheAnchor) {
  Layer layer(Overlap(OverlapMerge::kAdd), GetParam());
  layer.Set({std::numeric_limits<float>::quiet_NaN(), 5});
  ASSERT_TRUE(layer.snapshots.Take({0}).ok());
  layer.snapshots.Use({0});
  layer.snapshots.SetFinite(0, false);
  layer.SetAnchor({10, 20});
  layer.snapshots.Merge({0});
  EXPECT_THAT(layer.Get(), ElementsAre(10, 20));
}

TEST_P(SnapshotsOf, ALateReplicaThatDropsContinuesFromTheAnchor) {
  EditOptions options;
  options.quorum = 1;
  options.late = Late::kDrop;
  Layer layer(options, GetParam());
  ASSERT_TRUE(layer.snapshots.BeginLate({0}).ok());
  EXPECT_TRUE(layer.snapshots.late());
  layer.Set({3, 5});
  layer.SetAnchor({10, 20});
  EXPECT_FALSE(layer.snapshots.CatchUp({0}, 1));
  EXPECT_FALSE(layer.snapshots.late());
  EXPECT_THAT(layer.Get(), ElementsAre(10, 20));
  EXPECT_EQ(layer.snapshots.rounds_late(), 0);
}

TEST_P(SnapshotsOf, ALateReplicaThatCarriesKeepsItsSteps) {
  EditOptions options;
  options.quorum = 1;
  options.late = Late::kWeighted;
  Layer layer(options, GetParam());
  ASSERT_TRUE(layer.snapshots.BeginLate({0}).ok());
  layer.Set({3, 5});
  layer.SetAnchor({10, 20});
  ASSERT_TRUE(layer.snapshots.BeginLate({0}).ok()) << "a second round without this replica";
  layer.SetAnchor({12, 24});
  EXPECT_TRUE(layer.snapshots.CatchUp({0}, 2));
  EXPECT_THAT(layer.Get(), ElementsAre(14, 27)) << "the new anchor, plus the way from the first";
  EXPECT_EQ(layer.snapshots.rounds_late(), 2);
  layer.snapshots.ForgetLate();
  EXPECT_EQ(layer.snapshots.rounds_late(), 0);
}

// 1 + 2^-10 is no bf16. The exchange must see the change of theta, not the anchor's rounding error.
TEST(WideTheta, ARoundedThetaCountsFromTheExactAnchor) {
  Layer layer(Overlap(OverlapMerge::kAdd), DType::kBF16);
  const float anchor = 1 + 1.0F / 1024;
  layer.SetAnchor({anchor, anchor});
  layer.Set({1, 1.5});
  const float* const source = layer.theta.Source(0, nullptr);
  EXPECT_EQ(source[0], anchor) << "theta is the rounded anchor: nothing was trained";
  EXPECT_EQ(source[1], anchor + 0.5F);
  float rounded[kCount];
  layer.theta.RoundAnchor(0, rounded);
  EXPECT_EQ(rounded[0], 1);
  EXPECT_EQ(layer.theta.RoundedAnchor(0)[1], 1);
  const std::vector<float> snapshot = {2, 3};
  EXPECT_EQ(layer.theta.Source(0, snapshot.data())[1], anchor + 2);
}

TEST(WideTheta, AnF32ThetaIsNotCopied) {
  Layer layer(Overlap(OverlapMerge::kAdd), DType::kF32);
  EXPECT_EQ(layer.theta.Source(0, nullptr), layer.live.f32(0));
  EXPECT_EQ(layer.theta.Open(0), layer.live.f32(0));
  EXPECT_EQ(layer.theta.RoundedAnchor(0), layer.anchors.anchor(0));
}

}  // namespace
}  // namespace entrain
