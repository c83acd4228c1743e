#include "collectives/schedule.h"

#include "gtest/gtest.h"

#include "collectives/catalog.h"

namespace entrain {
namespace {

TEST(ScheduleBuilder, KeepsNoEmptyRounds) {
  ScheduleBuilder builder({CallKind::kAllReduce, 0, 2, 0, 2});
  builder.BeginLane();
  builder.BeginRound();
  builder.BeginRound();
  builder.Send(1, {});
  builder.BeginRound();
  builder.BeginLane();
  builder.BeginRound();
  const Schedule schedule = builder.Finish();
  ASSERT_EQ(schedule.lanes.size(), 2U);
  EXPECT_EQ(schedule.lanes[0].rounds, 1U);
  EXPECT_EQ(schedule.lanes[1].rounds, 0U);
  EXPECT_EQ(schedule.rounds.size(), 1U);
}

TEST(ScheduleBuilder, BeginsALaneWithOperations) {
  ScheduleBuilder builder({CallKind::kAllReduce, 0, 1, 0, 1});
  builder.BeginLane();
  builder.Copy({Slot::kOut, 0, 1}, {Slot::kIn, 0, 1});
  const Schedule schedule = builder.Finish();
  ASSERT_EQ(schedule.rounds.size(), 1U);
  EXPECT_EQ(schedule.rounds[0].transfers, 0U);
  EXPECT_EQ(schedule.rounds[0].ops, 1U);
  EXPECT_TRUE(Validate(schedule).ok());
}

TEST(ScheduleBuilder, NumbersScratchWithinEachLane) {
  ScheduleBuilder builder({CallKind::kAllReduce, 0, 2, 0, 2});
  builder.BeginLane();
  EXPECT_EQ(builder.AddScratch(0), 0);
  EXPECT_EQ(builder.AddScratch(1), 1);
  builder.BeginLane();
  EXPECT_EQ(builder.AddScratch(2), 0);
  const Schedule schedule = builder.Finish();
  EXPECT_EQ(schedule.lanes[1].first_scratch, 2U);
  EXPECT_EQ(schedule.lanes[1].scratch, 1U);
}

TEST(Schedule, PrintsOneLineARound) {
  const auto ring = FindAlgorithm(CallKind::kAllReduce, "ring");
  ASSERT_TRUE(ring.ok());
  EXPECT_EQ(ToString((*ring)->build({CallKind::kAllReduce, 1, 3, 0, 1}, {})),
            "all_reduce rank 1 of 3\n"
            "lane 0, 2 blocks of scratch\n"
            "  0: recv from 0 s[0], send to 2 in[0]; out[2] = s[0] + in[2]\n"
            "  1: recv from 0 s[1], send to 2 out[2]; out[1] = s[1] + in[1] (complete)\n"
            "  2: recv from 0 out[0], send to 2 out[1]\n"
            "  3: recv from 0 out[2], send to 2 out[0]\n");
}

TEST(Schedule, PrintsMessagesOfNoBytesAndRoots) {
  const auto direct = FindAlgorithm(CallKind::kBroadcast, "direct");
  const auto barrier = FindAlgorithm(CallKind::kBarrier, "direct");
  ASSERT_TRUE(direct.ok() && barrier.ok());
  EXPECT_EQ(ToString((*direct)->build({CallKind::kBroadcast, 1, 2, 1, 1}, {})),
            "broadcast rank 1 of 2, root 1\n"
            "lane 0, 0 blocks of scratch\n"
            "  0: send to 0 in[0..2)\n");
  EXPECT_EQ(ToString((*barrier)->build({CallKind::kBarrier, 1, 2, 0, 1}, {})),
            "barrier rank 1 of 2\n"
            "lane 0, 0 blocks of scratch\n"
            "  0: recv from 0 nothing, send to 0 nothing\n");
}

}  // namespace
}  // namespace entrain
