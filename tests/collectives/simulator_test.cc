// Checks that the simulator finds each kind of error. Without these tests, its results for good
// schedules would mean little.

#include "tests/support/simulator.h"

#include <array>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr Spec kTwoRanks = {CallKind::kAllReduce, 0, 2, 0, 1};

Region In(int block) {
  return {Slot::kIn, block, 1};
}
Region Out(int block) {
  return {Slot::kOut, block, 1};
}
Region Scratch(int block) {
  return {Slot::kScratch, block, 1};
}

// Two builders, one per rank, each with a lane begun.
struct Pair {
  Pair() {
    Begin(&zero);
    Begin(&one);
  }
  static void Begin(ScheduleBuilder* builder) {
    builder->BeginLane();
    builder->BeginRound();
  }
  absl::Status Run(bool rendezvous = false, bool in_place = false) {
    Simulation simulation;
    simulation.rendezvous = rendezvous;
    simulation.in_place = in_place;
    simulation.combine = [](absl::Span<const int64_t> v) { return v[0] + v[1]; };
    const std::vector<Schedule> schedules = {zero.Finish(), one.Finish()};
    data = {{{10, true}, {11, true}, {12, true}}, {{20, true}, {21, true}, {22, true}}};
    return Simulate(schedules, UniformLayout(kTwoRanks, 3), simulation, &data);
  }
  std::array<ScheduleBuilder*, 2> both() { return {&zero, &one}; }
  ScheduleBuilder zero{kTwoRanks};
  ScheduleBuilder one{Spec{CallKind::kAllReduce, 1, 2, 0, 1}};
  std::vector<std::vector<Cell>> data;
};

TEST(Simulator, MovesAndCombinesElements) {
  for (const bool rendezvous : {false, true}) {
    Pair pair;
    const int block = pair.one.AddScratch(0);
    pair.zero.Send(1, In(0));
    pair.one.Recv(0, Scratch(block));
    pair.one.Combine(Out(0), {Scratch(block), In(0)}, true);
    EXPECT_TRUE(pair.Run(rendezvous).ok());
    EXPECT_EQ(pair.data[1][0].value, 30);
    EXPECT_EQ(pair.data[1][1].value, 32);
    EXPECT_FALSE(pair.data[1][2].set);
  }
}

TEST(Simulator, FindsDeadlock) {
  Pair pair;
  for (ScheduleBuilder* builder : pair.both()) {
    const int peer = builder == &pair.zero ? 1 : 0;
    builder->Recv(peer, Out(0));
    builder->BeginRound();
    builder->Send(peer, In(0));
  }
  EXPECT_THAT(pair.Run().message(), HasSubstr("deadlock: rank 0 lane 0 round 0"));
}

TEST(Simulator, FindsSendsThatWaitForEachOtherWithRendezvousOnly) {
  for (const bool rendezvous : {false, true}) {
    Pair pair;
    for (ScheduleBuilder* builder : pair.both()) {
      const int peer = builder == &pair.zero ? 1 : 0;
      builder->Send(peer, In(0));
      builder->BeginRound();
      builder->Recv(peer, Out(0));
    }
    EXPECT_EQ(pair.Run(rendezvous).ok(), !rendezvous);
  }
}

TEST(Simulator, FindsLengthsThatDiffer) {
  Pair pair;
  pair.zero.Send(1, In(0));
  pair.one.Recv(0, Out(1));  // one element less
  EXPECT_THAT(pair.Run().message(), HasSubstr("expects 1 elements from rank 0, which sent 2"));
}

TEST(Simulator, FindsMessagesNobodyReceives) {
  Pair pair;
  pair.zero.Send(1, In(0));
  EXPECT_THAT(pair.Run().message(), HasSubstr("1 messages from rank 0 to rank 1"));
}

TEST(Simulator, FindsReadsOfWhatWasNeverWritten) {
  Pair from_scratch;
  from_scratch.zero.Copy(Out(0), Scratch(from_scratch.zero.AddScratch(0)));
  EXPECT_THAT(from_scratch.Run().message(), HasSubstr("rank 0 lane 0 round 0 reads an element"));
  Pair from_out;
  from_out.zero.Send(1, Out(0));
  from_out.one.Recv(0, Out(0));
  EXPECT_THAT(from_out.Run().message(), HasSubstr("never written"));
}

TEST(Simulator, FindsWritesToTheInput) {
  Pair by_operation;
  by_operation.zero.Copy(In(0), In(0));
  EXPECT_THAT(by_operation.Run().message(), HasSubstr("writes its input"));
  Pair by_receive;
  by_receive.zero.Send(1, In(0));
  by_receive.one.Recv(0, In(0));
  EXPECT_THAT(by_receive.Run().message(), HasSubstr("rank 1's input changed at element 0"));
}

TEST(Simulator, SharesInputAndOutputInPlace) {
  Pair pair;
  pair.zero.Copy(Out(0), In(0));
  pair.zero.Send(1, In(1));
  pair.one.Recv(0, Out(1));
  pair.one.BeginRound();
  pair.one.Combine(Out(1), {In(1), In(1)}, true);  // reads what was received
  EXPECT_TRUE(pair.Run(false, true).ok());
  EXPECT_EQ(pair.data[0][0].value, 10);
  EXPECT_EQ(pair.data[1][2].value, 24);
}

}  // namespace
}  // namespace entrain
