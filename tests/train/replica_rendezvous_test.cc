// The rendezvous itself: its table on all replicas, flags, and the counters that a repair takes over.
// Which anchors are repaired, over whole exchanges: anchor_check_test.
#include "lib/train/edit/replica_rendezvous.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsNan;

const std::vector<int> kLayers = {0, 1};

ExchangeGroups GroupsOf(std::shared_ptr<Communicator> sync) {
  ExchangeGroups groups;
  groups.sync = std::move(sync);
  return groups;
}

// One replica of one rank with two layers of two parameters, and all parts of its exchanges.
struct Replica {
  explicit Replica(const EditOptions& with, std::shared_ptr<Communicator> sync = nullptr)
      : options(with), members(GroupsOf(std::move(sync)), 0) {
    live = LayerArrays::OfSlab(slab, theta_in.data(), nullptr, DType::kF32);
    EXPECT_TRUE(theta.Reserve().ok());
    EXPECT_TRUE(snapshots.ReserveMerge().ok());
    EXPECT_TRUE(anchors.Create(live, outer.arrays()).ok());
    anchors.SealAll();
  }
  // Changes theta of a layer by (3, 4) x `scale`, a change of length 5 x `scale`.
  void Train(int layer, float scale) {
    live.f32(layer)[0] += 3 * scale;
    live.f32(layer)[1] += 4 * scale;
  }
  NormTable Meet(const Standing& mine = {.steps = 1, .steps_since = 1}) {
    auto table = rendezvous.Run(kLayers, mine, 0);
    EXPECT_TRUE(table.ok()) << table.status();
    return table.value_or(NormTable());
  }

  const EditOptions options;
  const Slab slab = Slab::Make({2, 2}, 1, 0).value();
  ExchangeMembers members;
  std::vector<float> theta_in = std::vector<float>(static_cast<size_t>(slab.count()));
  LayerArrays live;
  const ReplicaSums sums{slab, members.now(), 0};
  Anchors anchors{slab};
  WideTheta theta{slab, live, anchors};
  Snapshots snapshots{slab, live, options, anchors, &theta};
  Verdicts verdicts{slab, options};
  LayerState state{slab, options, members, &anchors};
  OuterOptimizer outer{slab, options};
  StalenessGaps gaps{slab.layers()};
  ReplicaRendezvous rendezvous{
      {slab, options, members, sums, anchors, snapshots, theta, verdicts, state, outer, gaps}};
};

TEST(ReplicaRendezvous, EveryReplicaGetsTheNormsAndStandingsOfAll) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& sync) {
    Replica replica(EditOptions(), sync);
    replica.Train(1, static_cast<float>(sync->rank()));
    const auto steps = static_cast<uint64_t>(10 + sync->rank());
    const NormTable table = replica.Meet({.steps = steps, .steps_since = 2, .tokens_since = steps});
    EXPECT_THAT(table.replicas, ElementsAre(0, 1, 2));
    EXPECT_THAT(table.norms, ElementsAre(0, 0, 0, 5, 0, 10));
    ASSERT_EQ(table.standings.size(), 3u);
    EXPECT_EQ(table.standings[2].steps, 12u);
    EXPECT_EQ(table.standings[1].tokens_since, 11u);
    EXPECT_THAT(replica.rendezvous.table().replicas, IsEmpty()) << "Keep has not been called";
    replica.rendezvous.Keep(table);
    EXPECT_TRUE(replica.rendezvous.exchanges());
  });
}

TEST(ReplicaRendezvous, AnnouncedFlagsTravelOnce) {
  Replica replica((EditOptions()));
  replica.rendezvous.Announce(0);
  replica.rendezvous.Announce(kApplied);
  const NormTable table = replica.Meet({.steps_since = 1, .flags = kCounted});
  EXPECT_EQ(table.standings[0].flags, kApplied | kCounted);
  replica.rendezvous.Keep(table);
  replica.rendezvous.DropApplications();
  EXPECT_EQ(replica.rendezvous.table().standings[0].flags, kCounted);
  EXPECT_EQ(replica.Meet().standings[0].flags, 0u);
}

TEST(ReplicaRendezvous, TheStandingTellsOfLateRoundsAndOfANewcomer) {
  EditOptions options;
  options.quorum = 1;
  options.late = Late::kWeighted;
  options.newcomer_warmup = 4;
  Replica replica(options);
  replica.verdicts.BeginGrowing();
  ASSERT_TRUE(replica.snapshots.BeginLate(kLayers).ok());
  replica.snapshots.CatchUp(kLayers, 3);
  const uint64_t flags = replica.Meet().standings[0].flags;
  EXPECT_EQ(flags >> kLateShift, 3u);
  EXPECT_EQ(flags >> kNewShift & kMostNew, replica.verdicts.Growing(kLayers));
  EXPECT_GT(replica.verdicts.Growing(kLayers), 0u);
}

TEST(ReplicaRendezvous, AReplicaWithoutStepsNeedsNoExchange) {
  Replica replica((EditOptions()));
  replica.rendezvous.Keep(replica.Meet({.steps = 7}));
  EXPECT_FALSE(replica.rendezvous.exchanges());
  replica.rendezvous.Keep(replica.Meet({.steps = 8, .steps_since = 1}));
  EXPECT_TRUE(replica.rendezvous.exchanges());
}

TEST(ReplicaRendezvous, ANormThatIsNotFiniteReachesAllReplicas) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& sync) {
    Replica replica(EditOptions(), sync);
    if (sync->rank() == 1) {
      replica.live.f32(0)[1] = std::numeric_limits<float>::infinity();
    }
    const NormTable table = replica.Meet();
    EXPECT_EQ(table.norms[0], 0);
    EXPECT_FALSE(std::isfinite(table.norms[2]));
  });
}

TEST(ReplicaRendezvous, ARepairTakesOverTheCountersAndDistrustsTheLayerUntilItsExchange) {
  EditOptions options;
  options.anchor_check = AnchorCheck::kRepair;
  RunRanks(3, [&](const std::shared_ptr<Communicator>& sync) {
    Replica replica(options, sync);
    constexpr int kLayer = 1;
    const bool wrong = sync->rank() == 2;
    replica.outer.SetSteps(kLayer, wrong ? 1 : 6);
    replica.gaps.Set(kLayer, {.last = wrong ? 9.0 : 0.5, .sum = 2, .steps = 6});
    if (wrong) {
      replica.anchors.anchor(kLayer)[0] += 1;
    }
    const NormTable table = replica.Meet();
    EXPECT_EQ(replica.rendezvous.repairs(), 1);
    EXPECT_EQ(replica.anchors.anchor(kLayer)[0], 0);
    EXPECT_EQ(replica.outer.steps(kLayer), 6);
    EXPECT_EQ(replica.gaps.Get(kLayer).last, 0.5);
    EXPECT_EQ(replica.rendezvous.distrusted(), wrong ? kLayer : -1);
    EXPECT_THAT(table.norm(2, kLayer), IsNan()) << "the repaired layer brings nothing";
    EXPECT_EQ(table.norm(0, kLayer), 0);
    EXPECT_EQ(table.norm(2, 0), 0);
    replica.rendezvous.Keep(table);
    EXPECT_EQ(replica.rendezvous.distrusted(), -1) << "an exchange follows";
  });
}

TEST(ReplicaRendezvous, WithoutAnExchangeARepairedLayerStaysDistrustedUntilALoad) {
  EditOptions options;
  options.anchor_check = AnchorCheck::kRepair;
  RunRanks(3, [&](const std::shared_ptr<Communicator>& sync) {
    Replica replica(options, sync);
    if (sync->rank() == 0) {
      replica.anchors.anchor(0)[0] += 1;
    }
    replica.rendezvous.Keep(replica.Meet({.steps = 3}));
    EXPECT_EQ(replica.rendezvous.distrusted(), sync->rank() == 0 ? 0 : -1);
    replica.rendezvous.TrustAll();
    EXPECT_EQ(replica.rendezvous.distrusted(), -1);
  });
}

TEST(ReplicaRendezvous, DifferentRoundsAreAnErrorOnAllReplicas) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& sync) {
    Replica replica(EditOptions(), sync);
    const auto round = static_cast<uint64_t>(4 + sync->rank());
    const auto table = replica.rendezvous.Run(kLayers, {.round = round, .steps_since = 1}, 0);
    EXPECT_EQ(table.status().code(), absl::StatusCode::kDataLoss) << table.status();
  });
}

}  // namespace
}  // namespace entrain
