// Anchors that differ between replicas (option anchor_check), over real exchanges: bits of anchors
// and momenta are changed behind the library's back. The results are compared with a readable
// reference, and between the ranks bit for bit.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/exchange.h"
#include "tests/support/ranks.h"
#include "tests/train/edit_reference.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr int kLayersOfModel = 4, kStruckLayer = 2;
const std::vector<int> kOrder = {0, 1, 2, 3};

float Drift(int replica, int round, int layer, int64_t i) {
  return Noise(replica, round, layer, i) / 4;
}

EditOptions Checking(AnchorCheck check, EditOptions options = Weighed()) {
  options.anchor_check = check;
  return options;
}

void Flip(float* value, int bit) {
  uint32_t word;
  std::memcpy(&word, value, sizeof(word));
  word ^= 1u << bit;
  std::memcpy(value, &word, sizeof(word));
}

// One rank of a grid: rank r is slot r % M of replica r / M.
class Rank {
 public:
  Rank(const std::shared_ptr<Communicator>& comm, const Grid& grid, const EditOptions& options)
      : replica_(comm->rank() / grid.shards),
        slot_(comm->rank() % grid.shards),
        slab_(*Slab::Make(kFourLayers, grid.shards, slot_)),
        params_(static_cast<size_t>(slab_.count())),
        live_(LayerArrays::OfSlab(slab_, params_.data(), nullptr, DType::kF32)) {
    ExchangeGroups groups;
    if (grid.shards > 1) {
      groups.model = *comm->Split(replica_, slot_);
    }
    if (grid.replicas > 1) {
      groups.sync = *comm->Split(slot_, replica_);
    }
    exchange_ = std::make_unique<Exchange>(slab_, live_, options, groups);
    EXPECT_EQ(exchange_->Reserve(), absl::OkStatus());
    ForEach([](int l, int64_t i, float& value) { value = Replica::Initial(l, i); });
    EXPECT_EQ(exchange_->CreateAnchors(), absl::OkStatus());
    exchange_->SealAnchors();
  }

  int replica() const { return replica_; }
  int slot() const { return slot_; }
  Exchange& exchange() { return *exchange_; }
  const std::vector<float>& params() const { return params_; }
  const SlabLayer& layer(int l) const { return slab_.layer(l); }
  // Calls `visit` for each element of the shards.
  void ForEach(const std::function<void(int l, int64_t i, float& value)>& visit) {
    for (int l = 0; l < kLayersOfModel; ++l) {
      for (int64_t i = 0; i < layer(l).valid; ++i) {
        visit(l, layer(l).first + i, params_[static_cast<size_t>(layer(l).offset + i)]);
      }
    }
  }
  // The functions below change memory as a fault would.
  void FlipAnchor(int bit) {
    Flip(const_cast<float*>(exchange_->anchors().anchor(kStruckLayer)) + 3, bit);
  }
  void FlipMomentum(int bit) { Flip(exchange_->anchors().outer(0, kStruckLayer) + 3, bit); }

  // Trains, and holds a rendezvous.
  absl::StatusOr<bool> Meet(int round, uint64_t steps_since = 1) {
    ForEach([&](int l, int64_t i, float& value) {
      value = exchange_->anchors().anchor(l)[i - layer(l).first] + Drift(replica_, round, l, i);
    });
    return exchange_->Judge(kOrder,
                            {.round = static_cast<uint64_t>(round),
                             .steps = static_cast<uint64_t>(round + 1),
                             .steps_since = steps_since},
                            0);
  }
  void ExchangeLayers() {
    for (const int l : kOrder) {
      ASSERT_EQ(exchange_->Begin(l), absl::OkStatus());
      ASSERT_EQ(exchange_->Finish(l), absl::OkStatus());
    }
  }
  void Round(int round) {
    const absl::StatusOr<bool> met = Meet(round);
    ASSERT_TRUE(met.ok() && *met) << met.status();
    ExchangeLayers();
  }

 private:
  const int replica_, slot_;
  const Slab slab_;
  std::vector<float> params_;
  const LayerArrays live_;
  std::unique_ptr<Exchange> exchange_;
};

void ExpectNear(Rank& rank, const EditReference& want, int round) {
  rank.ForEach([&](int l, int64_t i, float& value) {
    ASSERT_NEAR(value, want.anchor(l)[static_cast<size_t>(i)], 4e-6)
        << "round " << round << ", layer " << l << ", element " << i;
  });
}

// Runs rounds in which `strike` is called before round 1, for a rank of replica 1 in the last slot.
// The layer's contribution of this replica must not count in round `dropped`.
void RepairsIn(int dropped, const Grid& grid, const std::function<void(Rank&)>& strike) {
  constexpr int kRounds = 4;
  std::vector<int> all(static_cast<size_t>(grid.replicas)), others;
  std::iota(all.begin(), all.end(), 0);
  for (const int replica : all) {
    if (replica != 1) {
      others.push_back(replica);
    }
  }
  EditReference reference(kFourLayers);
  std::vector<EditReference> want;
  for (int round = 0; round < kRounds; ++round) {
    for (const int l : kOrder) {
      reference.Exchange(l, round == dropped && l == kStruckLayer ? others : all,
                         [&](int replica, int64_t i) { return Drift(replica, round, l, i); });
    }
    want.push_back(reference);
  }
  std::vector<std::vector<float>> ended(static_cast<size_t>(grid.ranks()));
  RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm, grid, Checking(AnchorCheck::kRepair));
    for (int round = 0; round < kRounds; ++round) {
      if (round == 1 && rank.replica() == 1 && rank.slot() == grid.shards - 1) {
        strike(rank);
      }
      rank.Round(round);
      const bool wrong = rank.replica() == 1 && rank.slot() == grid.shards - 1;
      if (round >= dropped || !wrong) {
        ExpectNear(rank, want[static_cast<size_t>(round)], round);
      }
      for (const int l : kOrder) {
        const bool drops = round == dropped && l == kStruckLayer;
        EXPECT_EQ(rank.exchange().verdicts().report(l).weights[1] == 0, drops);
        EXPECT_EQ(rank.exchange().verdicts().report(l).accepted, !drops || rank.replica() != 1);
      }
    }
    EXPECT_EQ(rank.exchange().rendezvous().repairs(), rank.slot() == grid.shards - 1 ? 1 : 0);
    ended[static_cast<size_t>(comm->rank())] = rank.params();
  });
  for (int rank = grid.shards; rank < grid.ranks(); ++rank) {
    EXPECT_EQ(ended[static_cast<size_t>(rank)], ended[static_cast<size_t>(rank % grid.shards)]);
  }
}

TEST(AnchorCheck, MemoryThatHasChangedIsRepairedAtTheNextRendezvous) {
  for (const Grid& grid : {Grid{1, 3}, Grid{2, 3}, Grid{1, 2}, Grid{2, 2}}) {
    for (const int bit : {0, 30}) {  // the last bit, and one that makes the value huge
      SCOPED_TRACE(testing::Message()
                   << "M " << grid.shards << ", N " << grid.replicas << ", bit " << bit);
      RepairsIn(1, grid, [bit](Rank& rank) { rank.FlipAnchor(bit); });
    }
  }
}

// The outer step of round 1 has another result on replica 1, which round 2 finds. If its momentum
// were not repaired too, round 3 would find a difference again.
TEST(AnchorCheck, AnOuterStepWithAnotherResultIsRepairedWithItsState) {
  for (const Grid& grid : {Grid{1, 3}, Grid{2, 3}}) {
    RepairsIn(2, grid, [](Rank& rank) { rank.FlipMomentum(22); });
  }
}

TEST(AnchorCheck, WithoutAMajorityTheRunStops) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}}) {
    RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
      Rank rank(comm, grid, Checking(AnchorCheck::kRepair));
      rank.Round(0);
      const bool last = rank.slot() == grid.shards - 1;
      if (rank.replica() == 1 && last) {
        rank.FlipMomentum(22);
      }
      rank.Round(1);
      const absl::Status status = rank.Meet(2).status();
      if (last) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    testing::ContainsRegex("anchors differ: layer 2: checksum [0-9a-f]{16} on "
                                           "replica 0, [0-9a-f]{16} on replica 1; no majority"));
      } else {  // the rank of the other slot stops too
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("anchors differ: checksum "));
      }
    });
  }
}

TEST(AnchorCheck, StopNamesReplicasLayerAndValues) {
  const Grid grid = {2, 3};
  RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm, grid, Checking(AnchorCheck::kStop));
    rank.Round(0);
    if (rank.replica() == 1 && rank.slot() == 1) {
      rank.FlipAnchor(0);
    }
    const absl::Status status = rank.Meet(1).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    if (rank.slot() == 1) {
      EXPECT_THAT(
          std::string(status.message()),
          testing::MatchesRegex("anchors differ: layer 2: checksum [0-9a-f]{16} on replicas 0 and "
                                "2, [0-9a-f]{16} on replica 1 \\(changed in memory since its last "
                                "exchange\\)"));
    } else {
      EXPECT_THAT(std::string(status.message()),
                  testing::ContainsRegex("anchors differ: checksum [0-9a-f]{16} on replica 0, "));
    }
  });
}

TEST(AnchorCheck, AReplicaThatIsAloneFindsThatItsMemoryHasChanged) {
  for (const Grid& grid : {Grid{1, 1}, Grid{2, 1}}) {
    RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
      Rank rank(comm, grid, Checking(AnchorCheck::kStop));
      rank.Round(0);
      rank.FlipAnchor(5);
      EXPECT_THAT(std::string(rank.Meet(1).status().message()),
                  HasSubstr("layer 2: the anchor has changed in memory since its last exchange: "
                            "its checksum was "));
    });
  }
}

// Shows also that the other tests would fail without the option.
TEST(AnchorCheck, OffComparesNothing) {
  const Grid grid = {1, 3};
  std::vector<std::vector<float>> ended(3);
  RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm, grid, Checking(AnchorCheck::kOff));
    rank.Round(0);
    if (rank.replica() == 1) {
      rank.FlipAnchor(20);
    }
    rank.Round(1);
    EXPECT_EQ(rank.exchange().rendezvous().table().standings[1].anchor_checksum, 0u);
    ended[static_cast<size_t>(comm->rank())] = rank.params();
  });
  EXPECT_EQ(ended[0], ended[2]);
  EXPECT_NE(ended[0], ended[1]);
}

// A rendezvous without an exchange repairs too, and the next exchange drops the contribution.
TEST(AnchorCheck, ARepairedLayerIsDistrustedUntilItIsExchanged) {
  const Grid grid = {2, 3};
  RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm, grid, Checking(AnchorCheck::kRepair));
    rank.Round(0);
    if (rank.replica() == 1 && rank.slot() == 0) {
      rank.FlipAnchor(12);
    }
    for (const int round : {1, 2}) {
      EXPECT_THAT(rank.Meet(round, 0), testing::Property(&absl::StatusOr<bool>::value, false));
    }
    rank.Round(3);
    EXPECT_EQ(rank.exchange().verdicts().report(kStruckLayer).weights[1], 0);
    rank.Round(4);
    EXPECT_THAT(rank.exchange().verdicts().report(kStruckLayer).weights, Each(Not(0)));
    EXPECT_EQ(rank.exchange().rendezvous().repairs(), rank.slot() == 0 ? 1 : 0);
  });
}

// If the exchange runs during further steps, the parameters of a repaired layer become the anchor,
// even if the replica has trained them meanwhile.
TEST(AnchorCheck, BehindFurtherStepsARepairedLayerBecomesTheAnchor) {
  for (const OverlapMerge merge : {OverlapMerge::kAdd, OverlapMerge::kMix}) {
    const Grid grid = {1, 3};
    EditOptions options = Checking(AnchorCheck::kRepair);
    options.overlap_steps = 1;
    options.overlap_merge = merge;
    RunRanks(grid.ranks(), [&](const std::shared_ptr<Communicator>& comm) {
      Rank rank(comm, grid, options);
      if (rank.replica() == 1) {
        rank.FlipAnchor(12);
      }
      ASSERT_EQ(rank.exchange().snapshots().Take(kOrder), absl::OkStatus());
      rank.exchange().snapshots().Use(kOrder);
      ASSERT_TRUE(rank.Meet(0).ok());
      rank.ExchangeLayers();
      rank.ForEach([](int, int64_t, float& value) { value += 1; });
      rank.exchange().snapshots().Merge(kOrder);
      rank.ForEach([&](int l, int64_t i, float& value) {
        const float anchor = rank.exchange().anchors().anchor(l)[i - rank.layer(l).first];
        EXPECT_EQ(value == anchor, rank.replica() == 1 && l == kStruckLayer) << l << " " << i;
      });
    });
  }
}

// The pass that computes the hashes processes an array in pieces. The first layer has several.
TEST(AnchorCheck, ChangesNoBitOfTheResults) {
  ShardConfig config;
  config.layer_counts = {40'000, 3, 16'384};
  std::vector<std::vector<float>> ended;
  for (const AnchorCheck check : {AnchorCheck::kOff, AnchorCheck::kStop, AnchorCheck::kRepair}) {
    std::vector<float>& params = ended.emplace_back();
    RunReplicas({2, 2}, config, [&](Replica& r) {
      r.Edit(Checking(check));
      r.Forward();
      for (int round = 0; round < 2; ++round) {
        r.DriftFromAnchor([&](int l, int64_t i) { return Noise(r.replica(), round, l, i); });
        r.EndStep();
        ASSERT_TRUE(r.Forward());
      }
      EXPECT_EQ(r.edit().info().repairs, 0);
      if (r.replica() == 1 && r.slot() == 0) {
        params = r.params();
      }
    });
  }
  EXPECT_EQ(ended[0], ended[1]);
  EXPECT_EQ(ended[0], ended[2]);
}

TEST(AnchorCheck, RepairIsRefusedByNameWithCopies) {
  RunReplicas({1, 2, 2}, FourLayers(), [](Replica& r) {
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), r.shared_shards(), Checking(AnchorCheck::kRepair))
                        .status()
                        .message()),
        AllOf(HasSubstr("anchor_check: 1 (repair)"), HasSubstr("hold copies")));
    r.MeetAll();
  });
}

}  // namespace
}  // namespace entrain
