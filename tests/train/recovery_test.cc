// Recovery over real exchanges: the last of three replicas gives up, at chosen places of a round.
// The results are compared with a readable reference, and between the ranks bit for bit.
#include "lib/train/edit/recovery.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/round_runner.h"
#include "tests/support/ranks.h"
#include "tests/train/edit_reference.h"
#include "tests/train/rounds.h"

namespace entrain {
namespace {

constexpr int kReplicas = 3, kLost = 2, kLayersOfModel = 4;
const std::vector<int> kAll = {0, 1, 2}, kLeft = {0, 1};
const std::vector<int> kOrder = {0, 1, 2, 3};

float Drift(int replica, int round, int layer, int64_t i) {
  return Noise(replica, round, layer, i) / 4;
}

// The progress of a rank in the round in which the last replica is lost.
struct Reaches {
  static constexpr int kBegun = -2;                 // takes no part in its rendezvous
  static constexpr int kBrings = -1;                // takes part, and does not get the table
  static constexpr int kNext = kLayersOfModel + 1;  // is over, and is in the next rendezvous
  int turns = 0;                                    // else: turns that it finishes
};

class Rank {
 public:
  Rank(const std::shared_ptr<Communicator>& comm, const EditOptions& options)
      : replica_(comm->rank()),
        options_(options),
        slab_(*Slab::Make(kFourLayers, 1, 0)),
        params_(static_cast<size_t>(slab_.count())),
        live_(LayerArrays::OfSlab(slab_, params_.data(), nullptr, DType::kF32)),
        results_(kReplicas) {
    ExchangeGroups groups;
    groups.sync = *comm->Split(0, comm->rank());
    sync_ = groups.sync;
    exchange_ = std::make_unique<Exchange>(slab_, live_, options_, groups);
    auto world = ReplicaWorld::Make(sync_, {.replica = replica_, .slot = 0}, 1, 0);
    EXPECT_TRUE(world.ok()) << world.status();
    recovery_ = std::make_unique<Recovery>(*exchange_, results_, *std::move(world), nullptr, 0);
    EXPECT_EQ(exchange_->Reserve(), absl::OkStatus());
    for (int l = 0; l < kLayersOfModel; ++l) {
      for (int64_t i = 0; i < slab_.layer(l).full; ++i) {
        Param(l, i) = Replica::Initial(l, i);
      }
    }
    EXPECT_EQ(exchange_->CreateAnchors(), absl::OkStatus());
    exchange_->SealAnchors();
  }

  // Trains, and begins the next round.
  void BeginRound(int number) {
    for (int l = 0; l < kLayersOfModel; ++l) {
      for (int64_t i = 0; i < slab_.layer(l).full; ++i) {
        Param(l, i) = exchange_->anchors().anchor(l)[i] + Drift(replica_, number, l, i);
      }
    }
    const Standing standing = {.round = static_cast<uint64_t>(number),
                               .steps = static_cast<uint64_t>(number + 1),
                               .steps_since = 1};
    round_ = std::make_shared<ExchangeRound>(kOrder, standing, false,
                                             ExchangeRound::InFlight{.layers = 2});
    round_->Allow(round_->last_turn());
  }
  void Judge() {
    if (round_->finished() < 0) {
      const absl::StatusOr<bool> exchanges =
          exchange_->Judge(round_->order(), round_->standing(), 0);
      ASSERT_EQ(exchanges.status(), absl::OkStatus());
      round_->SetJudged(*exchanges);
      results_.Met(exchange_->rendezvous().table(), round_->standing().round);
    }
  }
  // Takes part in the calls of the others' Judge, and drops the answers.
  void BringOnly() {
    Standing mine = round_->standing();
    mine.anchor_checksum = exchange_->anchors().checksum();
    std::vector<uint64_t> record(sizeof(Standing) / sizeof(uint64_t));
    std::memcpy(record.data(), &mine, sizeof(mine));
    for (int l = 0; l < kLayersOfModel; ++l) {
      double square = 0;
      for (int64_t i = 0; i < slab_.layer(l).full; ++i) {
        square += std::pow(static_cast<double>(Drift(replica_, 1, l, i)), 2);
      }
      record.push_back(absl::bit_cast<uint64_t>(std::sqrt(square)));
    }
    std::vector<uint64_t> all(record.size() * kReplicas);
    CallOptions options;
    options.user_tag = kLayersOfModel;
    EXPECT_EQ(sync_->AllGather(record.data(), all.data(), static_cast<int64_t>(record.size()),
                               DType::kU64, options),
              absl::OkStatus());
  }
  void Finish(int turns) {
    while (round_->finished() < turns) {
      ASSERT_TRUE(MakeTurn(*round_, *exchange_).ok());
    }
  }
  // Begins layers, so that other ranks can finish them. A turn begins the layer after it too.
  void BeginUntil(int turns) {
    const int begun = round_->finished() == 0 ? 0 : round_->finished() + 1;
    for (int turn = begun; turn < turns; ++turn) {
      ASSERT_EQ(exchange_->Begin(turn), absl::OkStatus());
    }
  }
  void WholeRound(int number) {
    BeginRound(number);
    Judge();
    Finish(kLayersOfModel);
  }

  void ComeTo(int number, Reaches to, int others) {
    BeginRound(number);
    if (to.turns == Reaches::kBegun) {
      return;
    }
    if (to.turns == Reaches::kBrings) {
      BringOnly();
      return;
    }
    Judge();
    Finish(std::min(to.turns, kLayersOfModel));
    BeginUntil(others);
    if (to.turns == Reaches::kNext) {
      BeginRound(number + 1);
    }
  }

  float& Param(int l, int64_t i) { return params_[static_cast<size_t>(slab_.layer(l).offset + i)]; }
  const Anchors& anchors() const { return exchange_->anchors(); }
  Exchange& exchange() { return *exchange_; }
  Recovery& recovery() { return *recovery_; }
  Communicator& sync() { return *sync_; }
  ExchangeRound* round() { return round_.get(); }
  EditInfo info() const {
    EditInfo info;
    results_.Fill(&info);
    return info;
  }
  const ExchangeResults& results() const { return results_; }
  const std::vector<float>& params() const { return params_; }

 private:
  const int replica_;
  const EditOptions options_;
  const Slab slab_;
  std::vector<float> params_;
  const LayerArrays live_;
  ExchangeResults results_;
  std::shared_ptr<Communicator> sync_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Recovery> recovery_;
  std::shared_ptr<ExchangeRound> round_;
};

void ExpectNear(const Rank& rank, const EditReference& want, absl::string_view when) {
  for (int l = 0; l < kLayersOfModel; ++l) {
    for (size_t i = 0; i < want.anchor(l).size(); ++i) {
      ASSERT_NEAR(rank.anchors().anchor(l)[i], want.anchor(l)[i], 2e-6)
          << when << ", layer " << l << ", element " << i;
    }
  }
}

// The outer optimizer of Weighed(), as a function of the caller.
struct OuterSteps {
  std::vector<std::vector<float>> momenta = std::vector<std::vector<float>>(kLayersOfModel);
  std::vector<int64_t> steps = std::vector<int64_t>(kLayersOfModel);

  static int32_t Step(void* user, int32_t layer, int64_t step, float* anchor, const float* grad,
                      size_t count) {
    auto& it = *static_cast<OuterSteps*>(user);
    std::vector<float>& momentum = it.momenta[static_cast<size_t>(layer)];
    momentum.resize(count);
    for (size_t i = 0; i < count; ++i) {
      momentum[i] = 0.8f * momentum[i] + grad[i];
      anchor[i] -= 0.7f * (grad[i] + 0.8f * momentum[i]);
    }
    return ++it.steps[static_cast<size_t>(layer)] == step ? 0 : 1;
  }
};
EditOptions WeighedByCaller() {
  EditOptions options = Weighed();
  options.on_loss = OnLoss::kFinish;
  options.outer_nesterov = false;
  options.outer_optimizer = OuterKind::kCallback;
  options.outer_step = OuterSteps::Step;
  return options;
}

// Replicas 0 and 1 come to the places of the parameter in round 1, then replica 2 gives up.
void LoseOne(Reaches first, Reaches second, const EditOptions& options) {
  SCOPED_TRACE(absl::StrCat("first reaches ", first.turns, ", second ", second.turns));
  const int reached = std::max(first.turns, second.turns);
  const int counted = std::clamp(reached, 0, kLayersOfModel);
  EditReference want(kFourLayers);
  const auto exchange = [&want](int round, int layer, const std::vector<int>& replicas) {
    want.Exchange(layer, replicas, [round, layer](int replica, int64_t i) {
      return Drift(replica, round, layer, i);
    });
  };
  std::vector<EditReference> wanted;  // after rounds 1 and 2
  for (int round = 0; round < 3; ++round) {
    for (const int layer : kOrder) {
      exchange(round, layer, round == 0 || (round == 1 && layer < counted) ? kAll : kLeft);
    }
    wanted.push_back(want);
  }
  std::vector<std::vector<float>> ended(kReplicas);
  std::barrier there(kReplicas);
  RunRanks(kReplicas, [&](const std::shared_ptr<Communicator>& comm) {
    OuterSteps outer;
    EditOptions own = options;
    own.outer_user = &outer;
    Rank rank(comm, own);
    rank.WholeRound(0);
    const int me = comm->rank();
    const bool meets = reached >= 0;
    if (me == kLost) {
      rank.ComeTo(1, {meets ? counted : Reaches::kBegun}, counted);
      there.arrive_and_wait();
      rank.sync().Abort("this rank gives up");
      return;
    }
    rank.ComeTo(1, me == 0 ? first : second, counted);
    there.arrive_and_wait();
    while (rank.recovery().Needed().ok()) {
      std::this_thread::yield();
    }
    const absl::Status status = rank.recovery().Run(rank.round());
    ASSERT_EQ(status, absl::OkStatus());
    const bool is_ahead = (me == 0 ? first : second).turns == Reaches::kNext;
    if (!is_ahead) {
      rank.Judge();
      while (!rank.round()->arrived()) {
        ASSERT_TRUE(MakeTurn(*rank.round(), rank.exchange()).ok());
      }
      rank.BeginRound(2);
    }
    ExpectNear(rank, wanted[1], "after the loss");
    EXPECT_EQ(rank.info().replicas, 2);
    EXPECT_EQ(rank.info().losses, 1);
    EXPECT_EQ(rank.info().short_rounds, meets && counted < kLayersOfModel ? 1 : 0);
    EXPECT_EQ(rank.results().losses()[0].replica, kLost);
    const LayerReport report = rank.exchange().verdicts().report(3);
    EXPECT_EQ(report.weights.size(), 3u);
    EXPECT_EQ(report.weights[kLost] > 0, counted == kLayersOfModel);
    EXPECT_NEAR(report.weights[0] + report.weights[1] + report.weights[2], 1, 1e-12);
    EXPECT_EQ(report.brought_ever, counted == kLayersOfModel ? 6 : 5);
    rank.Judge();
    rank.Finish(kLayersOfModel);
    ExpectNear(rank, wanted[2], "a round later");
    ended[static_cast<size_t>(me)] = rank.params();
  });
  ASSERT_FALSE(ended[0].empty());
  EXPECT_EQ(ended[0], ended[1]);
}

constexpr int kBegun = Reaches::kBegun, kBrings = Reaches::kBrings, kNext = Reaches::kNext;

TEST(Recovery, BeforeTheRendezvousIsOverItIsHeldAgain) {
  LoseOne({kBegun}, {kBegun}, Weighed());
}

TEST(Recovery, ARankWithoutTheTableGetsIt) {
  for (const EditOptions& options : {Weighed(), Judged()}) {
    LoseOne({0}, {kBrings}, options);
    LoseOne({kBrings}, {0}, options);
  }
}

TEST(Recovery, LayersThatAreFinishedSomewhereCountTheLostReplicaEverywhere) {
  for (const EditOptions& options : {Weighed(), WeighedByCaller()}) {
    LoseOne({2}, {2}, options);
    LoseOne({2}, {1}, options);
    LoseOne({1}, {2}, options);
    LoseOne({0}, {1}, options);
    LoseOne({4}, {3}, options);
  }
}

TEST(Recovery, ARankInTheNextRendezvousHelps) {
  LoseOne({kNext}, {3}, WeighedByCaller());
  LoseOne({kNext}, {3}, Weighed());
  LoseOne({2}, {kNext}, Weighed());
  LoseOne({kNext}, {kNext}, Weighed());
}

}  // namespace
}  // namespace entrain
