// Schedules with one error are refused, and the message names it.

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "collectives/schedule.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

Region In(int first, int blocks = 1) {
  return {Slot::kIn, first, blocks};
}
Region Out(int first, int blocks = 1) {
  return {Slot::kOut, first, blocks};
}
Region Scratch(int first, int blocks = 1) {
  return {Slot::kScratch, first, blocks};
}

// Rank 1 of 3 with two lanes and six blocks. In reduce_scatter and all_gather it owns the blocks 2
// and 3.
std::string Refusal(CallKind kind, const std::function<void(ScheduleBuilder*)>& draw) {
  ScheduleBuilder builder({kind, 1, 3, 0, 2});
  builder.BeginLane();
  builder.BeginRound();
  draw(&builder);
  return std::string(Validate(builder.Finish()).message());
}

TEST(Validate, NamesKindRankLaneAndRound) {
  EXPECT_EQ(Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Copy(In(0), In(0)); }),
            "all_reduce schedule of rank 1: lane 0 round 0: writes block 0 of the input");
}

TEST(Validate, RefusesRegionsOutsideTheirSlots) {
  const auto refusal = [](CallKind kind, Region region, bool send) {
    return Refusal(kind, [&](ScheduleBuilder* b) {
      b->AddScratch(0);
      send ? b->Send(0, region) : b->Recv(0, region);
    });
  };
  const auto outside = HasSubstr("outside its slot's blocks");
  EXPECT_THAT(refusal(CallKind::kAllReduce, In(5, 2), true), outside);
  EXPECT_THAT(refusal(CallKind::kAllReduce, In(-1), true), outside);
  EXPECT_THAT(refusal(CallKind::kAllReduce, In(0, -1), true), outside);
  EXPECT_THAT(refusal(CallKind::kAllReduce, Scratch(1), false), outside);
  EXPECT_THAT(refusal(CallKind::kAllGather, In(1), true), outside);
  EXPECT_THAT(refusal(CallKind::kReduceScatter, Out(4), false), outside);
  EXPECT_THAT(refusal(CallKind::kBroadcast, In(0), true), outside);
  EXPECT_THAT(refusal(CallKind::kAllReduce, In(0), false),
              HasSubstr("writes block 0 of the input"));
}

TEST(Validate, RefusesPeersThatAreNotThere) {
  for (const int peer : {-1, 1, 3}) {
    EXPECT_THAT(Refusal(CallKind::kAllReduce, [&](ScheduleBuilder* b) { b->Send(peer, In(0)); }),
                HasSubstr("transfer with rank "));
  }
}

TEST(Validate, RefusesOverlapWithinARound) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Recv(0, Out(0, 2));
                        b->Recv(2, Out(1));
                      }),
              HasSubstr("receive from rank 2 overlaps another transfer"));
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Send(0, In(0));  // same memory if in place
                        b->Recv(2, Out(0));
                      }),
              HasSubstr("overlaps"));
}

TEST(Validate, RefusesReadsOfWhatIsNotThereYet) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Recv(0, Scratch(b->AddScratch(0)));
                        b->Send(2, Scratch(0));
                      }),
              HasSubstr("reads scratch block 0 before it is written"));
  EXPECT_THAT(Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Copy(Out(0), Out(1)); }),
              HasSubstr("reads block 1 of the output before it is written"));
  // The lanes are not ordered, so data that another lane has written do not count.
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Recv(0, Out(0));
                        b->BeginLane();
                        b->BeginRound();
                        b->Send(0, Out(0));
                      }),
              HasSubstr("lane 1 round 0: reads block 0 of the output"));
}

TEST(Validate, RefusesWhatIsWrongInPlace) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Recv(0, Out(0));
                        b->BeginRound();
                        b->Send(0, In(0));
                      }),
              HasSubstr("lane 0 round 1: reads block 0 of the input after"));
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Send(0, In(0));
                        b->BeginLane();
                        b->Copy(Out(0), In(0));
                        b->Copy(Out(1, 5), In(1, 5));
                      }),
              HasSubstr("lane 0 reads block 0 of the input while lane 1 writes"));
}

TEST(Validate, RefusesResultsUnlikeTheirOperands) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Copy(Out(0), In(1)); }),
              HasSubstr("operand as large as block 1 for a result as large as block 0"));
  EXPECT_THAT(Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Copy(Out(0, 2), In(0)); }),
              HasSubstr("operand of 1 blocks for a result of 2"));
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->AddScratch(0);
                        b->AddScratch(0);
                        b->AddScratch(0);
                        b->Recv(0, Scratch(0, 3));
                        b->Copy(Scratch(0, 2), Scratch(1, 2));
                      }),
              HasSubstr("overlaps an operand from block 1 partly"));
}

TEST(Validate, RefusesOperationsOfTooFewOperands) {
  EXPECT_THAT(
      Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Combine(Out(0), {In(0)}, true); }),
      HasSubstr("combine of 1 operands"));
}

TEST(Validate, RefusesLanesThatWriteTheSame) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce,
                      [](ScheduleBuilder* b) {
                        b->Recv(0, Out(0));
                        b->BeginLane();
                        b->BeginRound();
                        b->Recv(0, Out(0));
                      }),
              HasSubstr("written by lanes 0 and 1"));
}

TEST(Validate, RefusesResultsWithHoles) {
  EXPECT_THAT(Refusal(CallKind::kAllReduce, [](ScheduleBuilder* b) { b->Recv(0, Out(0, 5)); }),
              HasSubstr("block 5 of the output is never written"));
  EXPECT_THAT(Refusal(CallKind::kReduceScatter, [](ScheduleBuilder* b) { b->Recv(0, Out(2)); }),
              HasSubstr("block 3 of the output is never written"));
}

TEST(Validate, RefusesIndicesOutsideTheArrays) {
  const Algorithm* ring = *FindAlgorithm(CallKind::kAllReduce, "ring");
  const Schedule good = ring->build({CallKind::kAllReduce, 1, 3, 0, 2}, {});
  ASSERT_TRUE(Validate(good).ok());
  const std::function<void(Schedule*)> mistakes[] = {
      [](Schedule* s) { s->lanes[1].rounds += 1; },
      [](Schedule* s) { s->rounds[0].first_transfer = UINT32_MAX; },
      [](Schedule* s) {
        s->rounds.back().ops = 1;
        s->ops.pop_back();
      },
      [](Schedule* s) { s->ops[0].operands = UINT32_MAX; },
      [](Schedule* s) { s->scratch_like[0] = 6; },
      [](Schedule* s) { s->spec.rank = 3; },
  };
  for (const auto& mistake : mistakes) {
    Schedule bad = good;
    mistake(&bad);
    EXPECT_THAT(std::string(Validate(bad).message()), HasSubstr("points outside the schedule"));
  }
}

}  // namespace
}  // namespace entrain
