// Rounds in sequence, without a channel: their results on all ranks, and their reports.
#include "lib/train/acco/gradient_round.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::Each;

constexpr int64_t kCount = 5;
constexpr float kRate = 0.5f;

// A rank's parameters, its gradients, and its rounds of SGD.
struct Rank {
  explicit Rank(const std::shared_ptr<Communicator>& comm, ChannelOptions given = {})
      : options(std::move(given)) {
    options.count = kCount;
    options.params = params;
    options.lr = kRate;
    options.optimizer = *MakeOptimizer({});
    for (float& param : params) {
      param = static_cast<float>(8 + comm->rank());  // all ranks get rank 0's values
    }
    round = std::make_unique<GradientRound>(comm, options);
    EXPECT_EQ(round->Allocate(), absl::OkStatus());
    accumulator = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
    std::memset(accumulator.data(), 0, static_cast<size_t>(accumulator.size()));
  }
  void Add(float gradient) {
    for (int64_t i = 0; i < kCount; ++i) {
      sums()[i] += gradient;
    }
  }
  float* sums() { return reinterpret_cast<float*>(accumulator.data()); }
  // Returns the parameters after a round of this kind.
  float Make(RoundKind kind, const RoundCounts& mine) {
    round->buffers().Take(accumulator, Commits(kind), round->ranks().cut().layer());
    EXPECT_EQ(round->Run(kind, mine), absl::OkStatus());
    round->buffers().Publish();
    EXPECT_THAT(params, Each(params[0]));
    return params[0];
  }

  ChannelOptions options;
  float params[kCount];
  OwnedBuffer accumulator;
  std::unique_ptr<GradientRound> round;
};

TEST(GradientRound, AnEstimateTakesAAndItsCommitAAndB) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm);
    rank.Add(comm->rank() == 0 ? 1 : 3);  // A: 4 of 2 micro-batches
    EXPECT_EQ(rank.Make(RoundKind::kEstimate, {1, 10, 0}), 8 - kRate * 2);
    EXPECT_EQ(rank.sums()[0], comm->rank() == 0 ? 1 : 3);
    const RoundResult& result = rank.round->state().result();
    EXPECT_FALSE(result.committed);
    EXPECT_EQ(result.rounds, 1);
    EXPECT_EQ(result.commits, 0);
    EXPECT_EQ(result.microbatches, 2);
    EXPECT_EQ(result.lr, kRate);
    EXPECT_TRUE(std::isnan(result.grad_norm));
    rank.Add(comm->rank() == 0 ? 4 : 0);  // B: 4 of 2 more
    EXPECT_EQ(rank.Make(RoundKind::kCommit, {2, 20, 0}), 8 - kRate * 2);
    EXPECT_EQ(rank.sums()[0], 0);
    EXPECT_TRUE(result.committed);
    EXPECT_EQ(result.commits, 1);
    EXPECT_EQ(result.gradients, 4);
    EXPECT_EQ(result.tokens, 40);
    EXPECT_FALSE(rank.round->state().EndsRun());
  });
}

TEST(GradientRound, APredictionIsNotMadeAtTheEnd) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options;
    options.limit = 2;
    Rank rank(comm, options);
    rank.Add(1);
    EXPECT_EQ(rank.Make(RoundKind::kPredict, {1, 0, 0}), 8 - 2 * kRate);
    EXPECT_FALSE(rank.round->state().EndsRun());
    rank.Add(1);
    EXPECT_EQ(rank.Make(RoundKind::kPredict, {1, 0, 0}), 8 - 2 * kRate);
    EXPECT_TRUE(rank.round->state().EndsRun());
  });
}

TEST(GradientRound, OneRanksStopIsTheEndForAll) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm);
    rank.Make(RoundKind::kEstimate, {1, 0, comm->rank()});
    EXPECT_FALSE(rank.round->state().EndsRun());
    rank.Make(RoundKind::kCommit, {1, 0, comm->rank()});
    EXPECT_TRUE(rank.round->state().EndsRun());
  });
}

TEST(GradientRound, ClipsByTheNormOfTheMean) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options;
    options.clip_norm = 0.5;
    Rank rank(comm, options);
    rank.Add(2);
    const float after = rank.Make(RoundKind::kCommit, {1, 0, 0});
    const RoundResult& result = rank.round->state().result();
    EXPECT_DOUBLE_EQ(result.grad_norm, std::sqrt(double{kCount} * 4));
    EXPECT_DOUBLE_EQ(result.clip_factor, 0.5 / (result.grad_norm + 1e-6));
    EXPECT_FLOAT_EQ(after, static_cast<float>(8 - kRate * 2 * result.clip_factor));
  });
}

TEST(GradientRound, PublishesTheMastersAfterAnEstimate) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm);
    rank.Add(1);
    EXPECT_NE(rank.Make(RoundKind::kEstimate, {1, 0, 0}), 8);
    EXPECT_EQ(rank.round->PublishMasters(), absl::OkStatus());
    EXPECT_THAT(rank.params, Each(8.0f));
  });
}

TEST(GradientRound, ARateThatIsNoRateEndsTheRoundWithItsProgress) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options;
    options.schedule = [](void*, int64_t) { return -1.0; };
    Rank rank(comm, options);
    rank.round->buffers().Take(rank.accumulator, true, rank.round->ranks().cut().layer());
    EXPECT_EQ(rank.round->Run(RoundKind::kCommit, {1, 0, 0}).message(),
              "acco: round 1: the schedule of rates returned -1 at progress 0");
  });
}

}  // namespace
}  // namespace entrain
