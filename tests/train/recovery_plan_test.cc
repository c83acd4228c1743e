#include "lib/train/edit/recovery_plan.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// A rank in round 7: that has not met, or that has finished some turns; a rank in the next round.
constexpr RoundPlace kBegun = {.over = 7};
constexpr RoundPlace Judged(int64_t finished) {
  return {.over = 7, .judged = 1, .finished = finished};
}
constexpr RoundPlace kNext = {.over = 8};

TEST(RecoveryPlan, WithoutARendezvousThereIsNothingToFinish) {
  const auto plan = PlanRecovery({kBegun, kBegun});
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->met);
  EXPECT_EQ(plan->round, 7);
  EXPECT_FALSE(PlanRecovery({kNext, kNext})->met);
}

TEST(RecoveryPlan, TheLowestRankThatHasTheTableSendsIt) {
  EXPECT_EQ(PlanRecovery({kBegun, Judged(0), kNext})->table_from, 1);
  EXPECT_EQ(PlanRecovery({kNext, kBegun})->table_from, 0);
  EXPECT_EQ(PlanRecovery({Judged(0), kNext})->table_from, -1) << "all have it";
}

TEST(RecoveryPlan, TurnsThatOnlySomeHaveFinishedAreBetweenTheFirstAndTheLast) {
  const std::vector<RoundPlace> places = {Judged(3), Judged(1), Judged(2)};
  const auto plan = PlanRecovery(places);
  EXPECT_EQ(plan->first, 1);
  EXPECT_EQ(plan->all, 3);
  EXPECT_EQ(FinishedBy(places, 1), 0);
  EXPECT_EQ(FinishedBy({Judged(1), Judged(2), Judged(2)}, 1), 1);
  const auto ahead = PlanRecovery({Judged(4), kNext, kBegun});
  EXPECT_EQ(ahead->first, 0);
  EXPECT_EQ(ahead->all, RecoveryPlan::kEnd);
}

TEST(RecoveryPlan, EachSlotHasARankOfItsOwnThatHasFinished) {
  const std::vector<RoundPlace> places = {Judged(2), Judged(1), Judged(1), Judged(1)};
  const std::vector<ReplicaPlace> of = {{0, 0}, {0, 1}, {2, 0}, {2, 1}};
  EXPECT_EQ(FinishedBy(places, 0, of, 1), 1);
  EXPECT_EQ(FinishedBy(places, 1, of, 0), 0);
  EXPECT_EQ(FinishedBy(places, 1, of, 1), -1);
}

TEST(RecoveryPlan, RanksInRoundsThatCannotMeetAreNamed) {
  EXPECT_THAT(std::string(PlanRecovery({kBegun, {.over = 9}}).status().message()),
              HasSubstr("rank 1 of those left is in round 10"));
  EXPECT_FALSE(PlanRecovery({kBegun, {.over = 8, .judged = 1}}).ok());
}

TEST(ReplicaWorld, AReplicaThatLacksARankIsBroken) {
  const std::vector<ReplicaPlace> places = {{0, 0}, {0, 1}, {1, 0}, {2, 0}, {2, 1}};
  EXPECT_THAT(OfBrokenReplicas(places, 2), testing::ElementsAre(2));
  EXPECT_THAT(OfBrokenReplicas(places, 1), testing::ElementsAre());
  EXPECT_THAT(ReplicasOf(places), testing::ElementsAre(0, 1, 2));
}

TEST(RecoveryPlan, WhatOneRankKnowsOfTheEndAllRanksLearn) {
  constexpr RoundPlace kAll = {.over = 8, .end = RunEnd::kAllFinished};
  constexpr RoundPlace kReplica = {.over = 8, .end = RunEnd::kReplicaFinished};
  const std::vector<ReplicaPlace> of = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  EXPECT_EQ(RunEndOf({kNext, kNext, kNext, kNext}, of, 0), RunEnd::kUnknown);
  EXPECT_EQ(RunEndOf({kNext, kNext, kAll, kNext}, of, 0), RunEnd::kAllFinished);
  EXPECT_EQ(RunEndOf({kNext, kNext, kAll, kReplica}, of, 0), RunEnd::kAllFinished)
      << "ranks of another replica have met";
  EXPECT_EQ(RunEndOf({kNext, kNext, kAll, kReplica}, of, 1), RunEnd::kReplicaFinished);
}

// A member is lost soon after it has reported the failure of a process that is no member.
TEST(ReplicaWorld, AnEndThatBlamesAProcessOfAnotherCommunicatorIsALoss) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    if (comm->rank() == 0) {
      EXPECT_EQ(LossOf(comm.get()), absl::OkStatus());
      Blame blame;
      blame.rank = 5;  // in the other communicator
      blame.peer_id.fill(7);
      comm->EndWith(WithBlame(absl::AbortedError("a newcomer did not come"), blame));
      return;
    }
    float value = 0;
    EXPECT_FALSE(comm->Broadcast(&value, 1, DType::kF32, 0).ok());
    EXPECT_EQ(BlameOf(comm->status()).rank, -1);
    EXPECT_EQ(LossOf(comm.get()).code(), absl::StatusCode::kAborted);
  });
}

TEST(ReplicaWorld, AnEndByThisRankIsNoLoss) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    if (comm->rank() == 0) {
      comm->Abort("the caller wishes it");
      EXPECT_EQ(LossOf(comm.get()), absl::OkStatus());
      return;
    }
    float value = 0;
    EXPECT_FALSE(comm->Broadcast(&value, 1, DType::kF32, 0).ok());
    EXPECT_EQ(LossOf(comm.get()).code(), absl::StatusCode::kAborted) << "another rank gave up";
  });
}

}  // namespace
}  // namespace entrain
