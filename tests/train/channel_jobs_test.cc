// What a caller sees of a round that the worker runs. Rounds on a device, with their second job,
// are in gradient_channel_device_test.
#include "lib/train/acco/channel_jobs.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/acco/channel_ranks.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int64_t kCount = 5;

// A rank whose rounds are commits of zeros.
struct Rank {
  explicit Rank(const std::shared_ptr<Communicator>& comm, ScheduleFn schedule = nullptr) {
    options.count = kCount;
    options.params = params.data();
    options.optimizer = *MakeOptimizer({});
    options.schedule = schedule;
    round = std::make_unique<GradientRound>(comm, options);
    EXPECT_EQ(round->Allocate(), absl::OkStatus());
    jobs = std::make_unique<ChannelJobs>(
        *round, options.limit_ns, [this](const absl::Status& why) { round->ranks().End(why); },
        nullptr);
  }
  void Post() {
    std::memset(round->buffers().taken(), 0,
                static_cast<size_t>(round->ranks().cut().layer().padded) * sizeof(float));
    jobs->Post(RoundKind::kCommit, {1, 1, 0});
  }

  std::vector<float> params = std::vector<float>(kCount, 8);
  ChannelOptions options;
  std::unique_ptr<GradientRound> round;
  std::unique_ptr<ChannelJobs> jobs;
};

TEST(ChannelJobs, ARoundIsInFlightUntilItIsTaken) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    Rank rank(*world->Split(0, world->rank()));
    ChannelJobs& jobs = *rank.jobs;
    EXPECT_FALSE(jobs.in_flight());
    EXPECT_EQ(jobs.Await(), absl::OkStatus());
    if (world->rank() == 0) {
      rank.Post();
      EXPECT_TRUE(jobs.in_flight());
      EXPECT_TRUE(jobs.IsUnderWay());
      EXPECT_FALSE(*jobs.AwaitUntil(Deadline::After(10 * kMillisecond)));
    }
    ASSERT_EQ(world->Barrier(), absl::OkStatus());
    if (world->rank() == 1) {
      rank.Post();
    }
    EXPECT_TRUE(*jobs.AwaitUntil(Deadline::Never()));
    EXPECT_FALSE(jobs.IsUnderWay());
    EXPECT_TRUE(jobs.in_flight());
    EXPECT_EQ(jobs.Await(), absl::OkStatus());
    EXPECT_EQ(rank.round->state().result().microbatches, 2);
    EXPECT_GT(jobs.round_ns(), 0u);
    jobs.Take();
    EXPECT_FALSE(jobs.in_flight());
    ASSERT_EQ(world->Barrier(), absl::OkStatus());
  });
}

TEST(ChannelJobs, ALoadedRoundIsOver) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    Rank rank(comm);
    ChannelJobs& jobs = *rank.jobs;
    rank.Post();
    ASSERT_EQ(jobs.worker().Drain(), absl::OkStatus());
    for (const bool in_flight : {true, false}) {
      jobs.Restore(in_flight);
      EXPECT_EQ(jobs.in_flight(), in_flight);
      EXPECT_FALSE(jobs.IsUnderWay());
      EXPECT_TRUE(*jobs.AwaitUntil(Deadline::After(0)));
      EXPECT_EQ(jobs.Await(), absl::OkStatus());
      int calls = 0;
      jobs.WhenOver([&](const absl::Status& status) { calls += status.ok() ? 1 : 0; });
      EXPECT_EQ(calls, 1);
    }
  });
}

// A failed round is over. It ends the calls of the other ranks.
TEST(ChannelJobs, AFailedRoundEndsTheCommunicator) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& world) {
    const auto comm = *world->Split(0, world->rank());
    Rank rank(comm, world->rank() == 1 ? [](void*, int64_t) { return -1.0; } : ScheduleFn{});
    rank.Post();
    std::string message;
    rank.jobs->WhenOver(
        [&](const absl::Status& status) { message = std::string(status.message()); });
    const absl::Status status = rank.jobs->Await();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("acco: round 1: "));
    EXPECT_FALSE(rank.jobs->IsUnderWay());
    EXPECT_TRUE(rank.jobs->in_flight());
    EXPECT_FALSE(comm->status().ok());
    rank.jobs->worker().Stop();
    EXPECT_EQ(message, status.message());
    ASSERT_EQ(world->Barrier(), absl::OkStatus());
  });
}

TEST(ChannelJobs, AStartedRoundIsTakenByTheNextInstall) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    const Rank rank(comm);
    EXPECT_EQ(rank.jobs->CheckNotStarted(), absl::OkStatus());
    rank.jobs->SetStarted(true);
    EXPECT_TRUE(rank.jobs->started());
    EXPECT_EQ(
        rank.jobs->CheckNotStarted(),
        absl::FailedPreconditionError("acco: wait has started a synchronous round; install first"));
  });
}

TEST(ChannelFailure, KeepsTheFirstErrorAndTellsTheOthersIfAsked) {
  RunRanks(1, [](const std::shared_ptr<Communicator>& world) {
    const auto comm = *world->Split(0, 0);
    Rank rank(comm);
    ChannelFailure failure(rank.round->ranks());
    EXPECT_EQ(failure.Note(absl::OkStatus()), absl::OkStatus());
    EXPECT_EQ(failure.NoteForAll(absl::OkStatus()), absl::OkStatus());
    EXPECT_EQ(failure.status(), absl::OkStatus());
    EXPECT_EQ(failure.Note(absl::InternalError("first")), absl::InternalError("first"));
    EXPECT_EQ(comm->status(), absl::OkStatus());
    EXPECT_EQ(failure.NoteForAll(absl::InternalError("second")), absl::InternalError("second"));
    EXPECT_FALSE(comm->status().ok());
    EXPECT_EQ(failure.status(), absl::InternalError("first"));
  });
}

}  // namespace
}  // namespace entrain
