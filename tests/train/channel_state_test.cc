// What belongs to the state of a channel, and when the state may be saved. gradient_channel_test
// saves and loads whole runs.
#include "lib/train/acco/channel_state.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

constexpr int64_t kCount = 5;

// The only rank of a channel, with all parts of its state.
struct Rank {
  explicit Rank(const std::shared_ptr<Communicator>& comm) {
    options.count = kCount;
    options.params = params.data();
    options.optimizer = *MakeOptimizer({});
    options.min_microbatches = 1;
    accumulator = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
    round = std::make_unique<GradientRound>(comm, options);
    EXPECT_EQ(round->Allocate(), absl::OkStatus());
    quota = std::make_unique<MicrobatchQuota>(options);
    failure = std::make_unique<ChannelFailure>(round->ranks());
    jobs = std::make_unique<ChannelJobs>(
        *round, options.limit_ns, [](const absl::Status&) {}, nullptr);
    state = std::make_unique<ChannelState>(ChannelState::Parts{
        options, accumulator, held, *quota, rule, *round, *jobs, landed, *failure});
  }
  std::vector<std::string> Names(CheckpointKind kind) const {
    std::vector<std::string> names;
    const auto opened = state->Open(kind);
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (const StateEntry& entry : (*opened)->entries()) {
      names.push_back(entry.array.name);
    }
    return names;
  }

  std::vector<float> params = std::vector<float>(kCount, 8);
  ChannelOptions options;
  OwnedBuffer accumulator;
  RoundCounts held;
  std::unique_ptr<MicrobatchQuota> quota;
  DelayRule rule{DelayMethod::kAcco, 0};
  std::unique_ptr<GradientRound> round;
  LandedRound landed;
  std::unique_ptr<ChannelFailure> failure;
  std::unique_ptr<ChannelJobs> jobs;
  std::unique_ptr<ChannelState> state;
};

TEST(ChannelState, AnExactStateAlsoHasTheHalfBatch) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    int64_t cursor = 3;
    EXPECT_EQ(rank.state->AddState("cursor", Holder::kAll, DType::kI64, &cursor, 1),
              absl::OkStatus());
    EXPECT_THAT(rank.Names(CheckpointKind::kExact),
                IsSupersetOf({"held/gradients", "held/microbatches", "params", "made", "installs",
                              "caller/cursor"}));
    EXPECT_THAT(rank.Names(CheckpointKind::kPortable), Contains("caller/cursor"));
    EXPECT_THAT(rank.Names(CheckpointKind::kPortable), Not(Contains("held/gradients")));
  });
}

TEST(ChannelState, MayBeSavedOnlyBetweenAnInstallAndTheNextMicrobatch) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    EXPECT_EQ(rank.state->CheckSavable(CheckpointKind::kExact), absl::OkStatus());
    rank.jobs->SetStarted(true);
    EXPECT_THAT(std::string(rank.state->CheckSavable(CheckpointKind::kExact).message()),
                HasSubstr("install first"));
    rank.jobs->SetStarted(false);
    ASSERT_EQ(rank.quota->Add(2, 1), absl::OkStatus());
    EXPECT_THAT(std::string(rank.state->Open(CheckpointKind::kExact).status().message()),
                HasSubstr("acco: state: 2 micro-batches have been added since the last install"));
  });
}

// What the caller sets replaces the parts' values.
TEST(ChannelState, TakesUpWhatTheCallerSets) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    EXPECT_EQ(rank.state->moves(), 0);
    rank.state->Move();
    EXPECT_EQ(rank.state->moves(), 1);
    const auto opened = *rank.state->Open(CheckpointKind::kExact);
    for (size_t i = 0; i < opened->entries().size(); ++i) {  // the values as they are
      const StateEntry& entry = opened->entries()[i];
      std::vector<std::byte> bytes(
          static_cast<size_t>(entry.array.count * SizeOf(entry.array.dtype)));
      ASSERT_EQ(opened->Get(i, bytes.data(), entry.array.count, entry.array.dtype),
                absl::OkStatus());
      if (entry.array.name == "held/microbatches") {
        const int64_t held = 7;
        std::memcpy(bytes.data(), &held, sizeof(held));
      }
      ASSERT_EQ(opened->Set(i, bytes.data(), entry.array.count, entry.array.dtype),
                absl::OkStatus());
    }
    ASSERT_EQ(opened->Commit(kSecond), absl::OkStatus());
    EXPECT_EQ(rank.held.microbatches, 7);
    EXPECT_EQ(rank.landed.result.ranks, 1);
    EXPECT_EQ(rank.state->moves(), 2);
  });
}

TEST(ChannelState, IsClosedAfterAnError) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    EXPECT_FALSE(rank.failure->Note(absl::InternalError("first")).ok());
    EXPECT_EQ(rank.state->Open(CheckpointKind::kExact).status(), absl::InternalError("first"));
    EXPECT_EQ(rank.state->Save({}), absl::InternalError("first"));
    EXPECT_EQ(rank.state->Load({}), absl::InternalError("first"));
  });
}

}  // namespace
}  // namespace entrain
