// The ranks of a channel, and the cuts of their shards. channel_loss_test and channel_join_test
// have real losses and newcomers.
#include "lib/train/acco/channel_ranks.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::ElementsAre;

constexpr int64_t kCount = 10;

// A rank of a channel that trains parameters of 8.
struct Rank {
  explicit Rank(const std::shared_ptr<Communicator>& comm, OnLoss on_loss = OnLoss::kFail) {
    options.count = kCount;
    options.params = params.data();
    options.optimizer = *MakeOptimizer({});
    options.on_loss = on_loss;
    ranks = std::make_unique<ChannelRanks>(comm, options);
    EXPECT_EQ(ranks->Start(), absl::OkStatus());
    ranks->cut().Start(reinterpret_cast<const std::byte*>(params.data()));
  }
  float first_master() const { return *static_cast<const float*>(ranks->cut().own().theta()); }

  std::vector<float> params = std::vector<float>(kCount, 8);
  ChannelOptions options;
  std::unique_ptr<ChannelRanks> ranks;
};

TEST(ChannelRanks, AreTheRanksOfTheCommunicator) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    const ChannelRanks& ranks = *rank.ranks;
    EXPECT_EQ(ranks.comm(), comm);
    EXPECT_EQ(ranks.cut().comm(), comm);
    EXPECT_THAT(ranks.cut().members(), ElementsAre(0, 1));
    EXPECT_EQ(ranks.cut_bytes(), ranks.cut().bytes());
    EXPECT_EQ(ranks.next_number(), 2);
    EXPECT_EQ(ranks.joins(), 0);
    EXPECT_EQ(ranks.admission(), nullptr);
    EXPECT_FALSE(ranks.recovers());
    EXPECT_FALSE(ranks.Answers(absl::UnavailableError("lost")));
  });
}

TEST(ChannelRanks, TakeAPreparedCutOnce) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    const auto own = *comm->Split(0, comm->rank()), next = *comm->Split(0, comm->rank());
    Rank rank(own, OnLoss::kFinish);
    ChannelRanks& ranks = *rank.ranks;
    ranks.TakeCut();  // there is none
    EXPECT_EQ(ranks.cuts(), 0);
    EXPECT_EQ(ranks.prepared(), 0);
    ASSERT_EQ(ranks.PrepareCut(next, {0, 1, 2}, {0, 1, 2}), absl::OkStatus());
    EXPECT_EQ(ranks.prepared(), static_cast<int64_t>(next->generation()));
    EXPECT_EQ(ranks.cut().comm(), own);
    for (int i = 0; i < 2; ++i) {
      ranks.TakeCut();
      EXPECT_EQ(ranks.cuts(), 1);
      EXPECT_EQ(ranks.prepared(), 0);
      EXPECT_EQ(ranks.cut().comm(), next);
      EXPECT_EQ(ranks.cut_bytes(), ranks.cut().bytes());
    }
    EXPECT_EQ(rank.first_master(), 8);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// Rank 1 ends the communicator, so rank 0's call fails. Rank 0's recovery handles the failure, if
// rank 0 has a recovery. Rank 1's does not.
TEST(ChannelRanks, EndAndAbortEndTheCallsOfAllRanks) {
  for (const OnLoss on_loss : {OnLoss::kFail, OnLoss::kFinish}) {
    for (const bool abort : {false, true}) {
      RunRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
        const Rank rank(*comm->Split(0, comm->rank()), on_loss);
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());  // rank 0 has finished Start
        if (comm->rank() == 0) {
          const absl::Status status = rank.ranks->comm()->Barrier();
          EXPECT_FALSE(status.ok());
          EXPECT_EQ(rank.ranks->Answers(status), on_loss == OnLoss::kFinish) << status;
        } else if (abort) {
          rank.ranks->Abort("gives up");
        } else {
          rank.ranks->End(absl::UnavailableError("gives up"));
        }
        if (comm->rank() == 1) {
          EXPECT_FALSE(rank.ranks->Answers(absl::UnavailableError("gives up")));
        }
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      });
    }
  }
}

}  // namespace
}  // namespace entrain
