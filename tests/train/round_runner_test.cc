// The jobs of rounds over a worker whose jobs the test lets run one by one. The exchange is that of
// a replica alone.
#include "lib/train/edit/round_runner.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

constexpr int64_t kMinute = 60 * kSecond;

using testing::ElementsAre;
using testing::HasSubstr;

// Anchors are averages: an exchange of one replica sets them to its parameters.
EditOptions Options() {
  EditOptions options;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_lr = 1;
  options.outer_momentum = 0;
  options.overlap_steps = 2;
  return options;
}

struct Stage {
  explicit Stage(ExchangeGroups groups = {}) : exchange(slab, live, Options(), std::move(groups)) {
    worker.Limit(0);
    EXPECT_EQ(exchange.Reserve(), absl::OkStatus());
    EXPECT_EQ(exchange.CreateAnchors(), absl::OkStatus());
    exchange.SealAnchors();
  }
  // A round of both layers at step 5, with `steps` steps since the last exchange.
  // Lets the next job run, and waits for it.
  absl::Status RunNext() {
    worker.Limit(++ran);
    return worker.Wait(ran);
  }
  static std::shared_ptr<ExchangeRound> Round(uint64_t steps) {
    const Standing standing{.steps = 5, .steps_since = steps};
    auto round = std::make_shared<ExchangeRound>(std::vector<int>{0, 1}, standing, false,
                                                 ExchangeRound::InFlight{});
    round->Allow(round->last_turn());
    return round;
  }
  EditInfo Info() const {
    EditInfo info;
    results.Fill(&info);
    return info;
  }

  const Slab slab = *Slab::Make({3, 2}, 1, 0);
  std::vector<float> params{1, 2, 3, 4, 5}, grads{0, 0, 0, 0, 0};
  const LayerArrays live = LayerArrays::OfSlab(slab, params.data(), grads.data(), DType::kF32);
  Exchange exchange;
  ExchangeResults results{1};
  FirstError error;
  Worker worker{kMinute, [](const absl::Status&) {}};
  uint64_t ran = 0;  // jobs that may run
  RoundRunner runner{worker, exchange, results, error, nullptr};
};

TEST(RoundRunner, ARendezvousAndItsTurnsAreRecordedWhenTheirJobsRun) {
  Stage stage;
  const auto round = Stage::Round(1);
  EXPECT_EQ(stage.runner.PostJudge(round, 0), 1u);
  EXPECT_EQ(stage.runner.PostTurn(round), 2u);
  EXPECT_EQ(stage.runner.PostTurn(round), 3u);
  EXPECT_EQ(round->state(), ExchangeRound::State::kBegun) << "nothing runs in the caller's thread";
  EXPECT_EQ(stage.runner.sync_ns(), 0u);
  ASSERT_EQ(stage.RunNext(), absl::OkStatus());
  EXPECT_EQ(stage.Info().rendezvous, 1);
  EXPECT_EQ(stage.results.standings().size(), 1u);
  const uint64_t after_one = stage.runner.sync_ns();
  EXPECT_GT(after_one, 0u);

  stage.params = {2, 3, 4, 5, 6};
  const uint64_t before = stage.exchange.anchors().checksum();
  ASSERT_EQ(stage.RunNext(), absl::OkStatus());
  EXPECT_EQ(stage.Info().syncs, 0) << "one layer is not over";
  ASSERT_EQ(stage.RunNext(), absl::OkStatus());
  EXPECT_EQ(stage.Info().syncs, 1);
  EXPECT_EQ(stage.Info().last_sync_step, 5);
  EXPECT_NE(stage.exchange.anchors().checksum(), before);
  EXPECT_EQ(stage.Info().anchor_checksum, stage.exchange.anchors().checksum());
  EXPECT_THAT(std::vector<float>(stage.exchange.anchors().anchor(1),
                                 stage.exchange.anchors().anchor(1) + 2),
              ElementsAre(5, 6));
  EXPECT_GT(stage.runner.sync_ns(), after_one);
  EXPECT_EQ(stage.error.status(), absl::OkStatus());
}

TEST(RoundRunner, TurnsWithNothingToExchangeLeaveNoResult) {
  Stage stage;
  const auto round = Stage::Round(0);
  stage.runner.PostJudge(round, 0);
  stage.runner.PostTurn(round);
  ASSERT_EQ(stage.RunNext(), absl::OkStatus());
  ASSERT_EQ(stage.RunNext(), absl::OkStatus());
  EXPECT_EQ(stage.Info().rendezvous, 1);
  EXPECT_EQ(stage.Info().syncs, 0);
  EXPECT_EQ(stage.Info().last_sync_step, -1);
}

TEST(RoundRunner, SealedAnchorsAreShown) {
  Stage stage;
  EXPECT_EQ(stage.Info().anchor_checksum, 0u);
  stage.runner.Seal();
  EXPECT_NE(stage.Info().anchor_checksum, 0u);
  EXPECT_EQ(stage.Info().anchor_checksum, stage.exchange.anchors().checksum());
}

TEST(RoundRunner, AMergeFollowsTheLastTurnAndPrecedesTheCallersNextWork) {
  Stage stage;
  ASSERT_EQ(stage.exchange.snapshots().Take({0, 1}), absl::OkStatus());
  stage.exchange.snapshots().Use({0, 1});
  stage.params = {2, 3, 4, 5, 6};  // a step since the snapshot
  const auto round = ExchangeRound::Arrived({0, 1}, 3);
  bool in_use = false;
  round->set_last_job(stage.worker.Post([&] {
    in_use = stage.exchange.snapshots().in_use(0);
    return absl::OkStatus();
  }));
  stage.worker.Limit(Worker::kNoLimit);
  ASSERT_EQ(stage.runner.Merge(round), absl::OkStatus());
  EXPECT_TRUE(in_use) << "merged before the round was over";
  EXPECT_FALSE(stage.exchange.snapshots().in_use(0));
  EXPECT_EQ(round->state(), ExchangeRound::State::kMerged);
}

// A round behind further steps exchanges the snapshot. Without an exchange the snapshot is dropped.
TEST(RoundRunner, ARoundBehindUsesItsSnapshotUntilItIsMerged) {
  for (const uint64_t steps : {uint64_t{1}, uint64_t{0}}) {
    Stage stage;
    stage.worker.Limit(Worker::kNoLimit);
    ASSERT_EQ(stage.exchange.snapshots().Take({0, 1}), absl::OkStatus());
    const auto round = std::make_shared<ExchangeRound>(std::vector<int>{0, 1},
                                                       Standing{.steps = 5, .steps_since = steps},
                                                       /*behind=*/true, ExchangeRound::InFlight{});
    round->Allow(1);
    EXPECT_EQ(stage.worker.Wait(stage.runner.PostJudge(round, 0)), absl::OkStatus());
    EXPECT_TRUE(stage.exchange.snapshots().in_use(0));
    EXPECT_EQ(round->exchanges(), steps > 0);
    stage.runner.PostTurn(round);
    round->set_last_job(stage.runner.PostTurn(round));
    ASSERT_EQ(stage.runner.Merge(round), absl::OkStatus());
    EXPECT_FALSE(stage.exchange.snapshots().in_use(0));
    EXPECT_EQ(round->state(), ExchangeRound::State::kMerged);
  }
}

TEST(RoundRunner, AFailedJobNamesTheExchangeAndEndsTheObject) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ExchangeGroups groups;
    groups.sync = comm;
    Stage stage(groups);
    comm->EndWith(absl::DataLossError("the link is gone"));
    const auto round = Stage::Round(1);
    stage.runner.PostJudge(round, 0);
    stage.runner.PostTurn(round);
    const absl::Status why = stage.RunNext();
    EXPECT_THAT(std::string(why.message()), HasSubstr("edit: exchange 1: "));
    EXPECT_THAT(std::string(why.message()), HasSubstr("the link is gone"));
    EXPECT_EQ(stage.error.status(), why);
    EXPECT_EQ(round->state(), ExchangeRound::State::kBegun);
    EXPECT_FALSE(stage.RunNext().ok()) << "a turn after the end";
    EXPECT_EQ(stage.error.status(), why);
    EXPECT_EQ(stage.Info().rendezvous, 0);
  });
}

// The other rank of the group must not wait for this one.
TEST(RoundRunner, AFailureEndsTheGroupsOnAllRanks) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ExchangeGroups groups;
    groups.sync = comm;
    Stage stage(groups);
    if (comm->rank() == 0) {
      stage.runner.Fail(absl::InternalError("edit: the first"));
      stage.runner.Fail(absl::InternalError("edit: the second"));
      EXPECT_EQ(stage.error.status(), absl::InternalError("edit: the first"));
    }
    const absl::Status status = comm->Barrier();
    EXPECT_THAT(std::string(status.message()), HasSubstr("edit: the first"));
  });
}

}  // namespace
}  // namespace entrain
