// The copies of neighbours' shards (on_loss): their cost, the times at which they are renewed, and
// how a difference is found. No rank is lost here.

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/acco/channel_cut.h"
#include "lib/train/acco/gradient_channel.h"
#include "tests/support/ranks.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int64_t kCount = 1003;

std::shared_ptr<const Optimizer> Adamw() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdamw;
  return *MakeOptimizer(config);
}

struct Rank {
  explicit Rank(Communicator& of, ChannelOptions given = {}) : comm(of), options(std::move(given)) {
    options.count = kCount;
    options.params = params.data();
    options.lr = 0.5;
    if (options.optimizer == nullptr) {
      options.optimizer = Adamw();
    }
    auto made = GradientChannel::Create(comm, options);
    EXPECT_TRUE(made.ok()) << made.status();
    channel = *std::move(made);
  }
  // Makes a round with gradients that differ between ranks and elements.
  absl::Status Install() {
    auto* const sums = static_cast<float*>(channel->gradients());
    for (int64_t i = 0; i < kCount; ++i) {
      sums[i] += static_cast<float>((i + 3 * comm.rank()) % 8 - 4) / 8;
    }
    EXPECT_EQ(channel->Add(1, 1), absl::OkStatus());
    return channel->Install();
  }

  Communicator& comm;
  ChannelOptions options;
  std::vector<float> params = std::vector<float>(kCount, 1);
  std::shared_ptr<GradientChannel> channel;
};

ChannelOptions Finishing(DelayMethod method = DelayMethod::kZero1) {
  ChannelOptions options;
  options.method = method;
  options.on_loss = OnLoss::kFinish;
  return options;
}

// Copies change no bit of the results.
TEST(ChannelCopies, CostASumAndAStepAndChangeNoResult) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions without;
    without.method = DelayMethod::kZero1;
    Rank plain(*comm, without), copied(*comm, Finishing());
    for (int round = 1; round <= 4; ++round) {
      ASSERT_EQ(plain.Install(), absl::OkStatus());
      ASSERT_EQ(copied.Install(), absl::OkStatus());
      EXPECT_EQ(plain.params, copied.params);
      const int64_t shard = (kCount + 2) / 3, sum = 4 * shard, votes = 2 * 16;
      EXPECT_EQ(copied.channel->info().bytes_sent - plain.channel->info().bytes_sent,
                static_cast<uint64_t>(round * (sum + votes)));
      // The copy: masters, two moments, and the room for two pieces. The sum. The gradients that
      // are kept, for which the buffer has room for the padding of any number of ranks.
      EXPECT_EQ(copied.channel->info().bytes_held - plain.channel->info().bytes_held,
                (3 + 2) * 4 * shard + 4 * shard + 4 * (kCount + 2) + 4 * (kCount + 2 - 3 * shard));
    }
    EXPECT_EQ(copied.channel->info().ranks, 3);
    EXPECT_EQ(copied.channel->info().losses, 0);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// An estimate changes nothing, so it has neither votes nor sums for neighbours.
TEST(ChannelCopies, CostNothingInAnEstimate) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions without;
    Rank plain(*comm, without), copied(*comm, Finishing(DelayMethod::kAcco));
    for (Rank* rank : {&plain, &copied}) {
      ASSERT_EQ(rank->Install(), absl::OkStatus());
      ASSERT_EQ(rank->channel->Add(1, 1), absl::OkStatus());
      ASSERT_TRUE(*rank->channel->Wait(Deadline::Never()));  // the estimate is over
    }
    EXPECT_EQ(copied.channel->info().bytes_sent, plain.channel->info().bytes_sent);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// Loaded masters are copied before the next commit compares them.
TEST(ChannelCopies, AreRenewedByALoad) {
  const Directory directory;
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    RunRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
      Rank saved(*comm, Finishing());
      ASSERT_EQ(saved.Install(), absl::OkStatus());
      ASSERT_EQ(saved.Install(), absl::OkStatus());
      ASSERT_EQ(saved.channel->state().Save(To(directory, kind)), absl::OkStatus());
      Rank loaded(*comm, Finishing());
      ASSERT_EQ(loaded.channel->state().Load(To(directory, kind)), absl::OkStatus());
      for (int round = 0; round < 2; ++round) {
        ASSERT_EQ(saved.Install(), absl::OkStatus());
        ASSERT_EQ(loaded.Install(), absl::OkStatus());
        EXPECT_EQ(saved.params, loaded.params);
      }
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

// Steps wrongly from the given call on.
class WrongOptimizer final : public Optimizer {
 public:
  explicit WrongOptimizer(int from) : from_(from) {}
  int state_arrays() const override { return rule_->state_arrays(); }
  void Step(const StepArgs& args, Apply apply) const override {
    rule_->Step(args, apply);
    if (++calls_ >= from_) {
      args.master[0] += 0.25f;
    }
  }

 private:
  const std::shared_ptr<const Optimizer> rule_ = Adamw();
  const int from_;
  mutable int calls_ = 0;
};

// A rank steps its own shard and then the copy, each in one piece here.
TEST(ChannelCopies, ThatDifferEndTheRunBeforeTheNextCommit) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options = Finishing();
    options.optimizer = std::make_shared<WrongOptimizer>(comm->rank() == 1 ? 4 : 1'000'000);
    Rank rank(*comm, options);
    EXPECT_EQ(rank.Install(), absl::OkStatus());
    EXPECT_EQ(rank.Install(), absl::OkStatus());  // rank 1's copy is wrong afterwards
    const absl::Status status = rank.Install();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("acco: round 3: the copy of rank 0's shard on rank 1 differs from it after "
                  "commit 2"));
  });
}

// All ranks make the same error. A rank that first hears of another rank's error may go on without
// that rank, and then makes the error itself. If it hears of both other ranks, a shard is lost,
// because one of them had the copy of the other's shard. The rank waits for no other rank in either
// case.
TEST(ChannelCopies, DoNotHideAnErrorOfTheRanksThemselves) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options = Finishing();
    options.schedule = [](void*, int64_t progress) { return progress < 1 ? 0.5 : -1.0; };
    Rank rank(*comm, options);
    EXPECT_EQ(rank.Install(), absl::OkStatus());
    EXPECT_THAT(std::string(rank.Install().message()),
                AnyOf("acco: round 2: the schedule of rates returned -1 at progress 1",
                      AllOf(HasSubstr("acco: round 2: rank "), HasSubstr("had the copy"))));
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

// The only rank has no neighbour.
TEST(ChannelCopies, OfOneRankDoNotExist) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(*comm, Finishing());
    ASSERT_EQ(rank.Install(), absl::OkStatus());
    EXPECT_EQ(rank.channel->info().bytes_sent, 0u);
  });
}

// The sum over the shards of 1, 2 and 3 ranks.
TEST(ChannelCopies, TheHashOfAllShardsDoesNotDependOnTheCut) {
  std::vector<uint64_t> sums;
  for (const int ranks : {1, 2, 3}) {
    std::atomic<uint64_t> sum{0};
    RunRanks(ranks, [&](const std::shared_ptr<Communicator>& comm) {
      std::vector<float> params(kCount);
      std::iota(params.begin(), params.end(), 0.5f);
      ChannelOptions options;
      options.count = kCount;
      options.params = params.data();
      options.optimizer = Adamw();
      std::vector<int> members(static_cast<size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      const auto cut = *ChannelCut::Make(comm, options, members);
      cut->Start(reinterpret_cast<const std::byte*>(params.data()));
      const uint64_t hash = cut->Hash();
      sum += hash;
      for (float* const array : cut->own().Arrays()) {  // any change of a bit
        array[7] += 0x1p-10f;
        EXPECT_NE(cut->Hash(), hash);
        array[7] -= 0x1p-10f;
      }
      EXPECT_EQ(cut->Hash(), hash);
    });
    sums.push_back(sum);
  }
  EXPECT_NE(sums[0], 0u);
  EXPECT_THAT(sums, testing::Each(sums[0]));
}

}  // namespace
}  // namespace entrain
