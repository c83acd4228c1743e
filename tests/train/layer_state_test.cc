// The state of a layer, sent from one rank of a sync group to the others.
#include "lib/train/edit/layer_state.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kOuterArrays = 2;

ExchangeGroups GroupsOf(std::shared_ptr<Communicator> sync) {
  ExchangeGroups groups;
  groups.sync = std::move(sync);
  return groups;
}

// One rank of a sync group. Its arrays of layer 1 hold values that depend on the rank.
struct Rank {
  Rank(const std::shared_ptr<Communicator>& sync, const EditOptions& with)
      : options(with), members(GroupsOf(sync), 0), memory(static_cast<size_t>(slab.count())) {
    live = LayerArrays::OfSlab(slab, memory.data(), nullptr, DType::kF32);
    EXPECT_TRUE(anchors.Create(live, kOuterArrays).ok());
    anchors.SealAll();
    EXPECT_TRUE(state.Reserve().ok());
  }
  void Fill(float value) {
    for (int64_t i = 0; i < slab.layer(1).valid; ++i) {
      anchors.anchor(1)[i] = value;
      for (int array = 0; array < kOuterArrays; ++array) {
        anchors.outer(array, 1)[i] = value + static_cast<float>(array + 1) / 4;
      }
    }
    anchors.Seal(1);
  }
  std::vector<float> Layer(const float* values) const {
    return {values, values + slab.layer(1).valid};
  }

  const EditOptions options;
  const Slab slab = Slab::Make({4, 3}, 1, 0).value();
  ExchangeMembers members;
  std::vector<float> memory;
  LayerArrays live;
  Anchors anchors{slab};
  LayerState state{slab, options, members, &anchors};
};

TEST(LayerState, AnchorAndOuterArraysOfTheRootReplaceThoseOfTheOthers) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& sync) {
    constexpr int kRoot = 1;
    Rank rank(sync, EditOptions());
    rank.Fill(static_cast<float>(10 * sync->rank()));
    const uint64_t before = rank.anchors.seal(0);
    auto received = rank.state.Broadcast(1, kRoot);
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_THAT(rank.Layer(rank.anchors.anchor(1)), Each(10 * sync->rank())) << "not yet taken";
    if (sync->rank() != kRoot) {
      rank.state.Take(1, *received);
    }
    EXPECT_THAT(rank.Layer(rank.anchors.anchor(1)), Each(10));
    EXPECT_THAT(rank.Layer(rank.anchors.outer(0, 1)), Each(10.25F));
    EXPECT_THAT(rank.Layer(rank.anchors.outer(1, 1)), Each(10.5F));
    EXPECT_EQ(rank.anchors.seal(1), rank.anchors.HashOf(1)) << "the anchor is sealed";
    EXPECT_EQ(rank.anchors.seal(0), before) << "the other layer is unchanged";
  });
}

TEST(LayerState, IfTheCallerMakesTheOuterStepTheCombinedDeltaIsSent) {
  EditOptions options;
  options.on_loss = OnLoss::kFinish;
  options.outer_optimizer = OuterKind::kCallback;
  RunRanks(2, [&](const std::shared_ptr<Communicator>& sync) {
    Rank rank(sync, options);
    rank.Fill(static_cast<float>(sync->rank()));
    if (sync->rank() == 0) {
      const std::vector<float> mean = {1, 2, 3};
      rank.state.KeepMean(1, mean.data());
    }
    auto received = rank.state.Broadcast(1, 0);
    ASSERT_TRUE(received.ok()) << received.status();
    if (sync->rank() == 1) {
      rank.state.Take(1, *received);
    }
    // Rank 1 has kept the delta, so it can send it back.
    received = rank.state.Broadcast(1, 1);
    ASSERT_TRUE(received.ok()) << received.status();
    if (sync->rank() == 0) {
      EXPECT_THAT(rank.Layer(reinterpret_cast<const float*>(received->data())),
                  ElementsAre(1, 2, 3));
    }
    EXPECT_THAT(rank.Layer(rank.anchors.anchor(1)), Each(sync->rank())) << "the anchors stay";
  });
}

TEST(LayerState, AfterALossTheErrorIsReturnedAndNothingHasChanged) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& sync) {
    Rank rank(sync, EditOptions());
    rank.Fill(static_cast<float>(sync->rank()));
    if (sync->rank() == 0) {
      sync->Abort("no more");
      return;
    }
    const auto received = rank.state.Broadcast(1, 0);
    ASSERT_FALSE(received.ok());
    EXPECT_THAT(std::string(received.status().message()), HasSubstr("no more"));
    EXPECT_THAT(rank.Layer(rank.anchors.anchor(1)), Each(1));
  });
}

}  // namespace
}  // namespace entrain
