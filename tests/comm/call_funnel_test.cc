// The values that calls get before they start. The owner in this test keeps the works that the
// funnel gives it.
#include "lib/comm/call_funnel.h"

#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

using CallFunnelTest = PlayedComm;

TEST_F(CallFunnelTest, CollectivesOfATagAreNumberedInTheirOrder) {
  EXPECT_EQ(funnel->last_sequence(), 0u);
  EXPECT_EQ(Started(AllReduce()).number(), 1u);
  EXPECT_EQ(Started(AllReduce()).number(), 2u);
  EXPECT_EQ(Started(AllReduce(5)).number(), 1u) << "a tag has numbers of its own";
  EXPECT_EQ(funnel->last_sequence(), 2u);
  EXPECT_EQ(funnel->calls(), 3u);
}

TEST_F(CallFunnelTest, ACallWithoutATimeoutTakesTheCommunicators) {
  Call call = AllReduce();
  funnel->SetDeadline(&call, 100);
  EXPECT_EQ(call.options.timeout_ns, 7 * kSecond);
  EXPECT_EQ(call.options.deadline.at_ns, 100 + 7 * kSecond);
  funnel->SetTimeout(kSecond);
  funnel->SetDeadline(&call, 100);
  EXPECT_EQ(call.options.timeout_ns, 7 * kSecond) << "it has one";
  Call other = AllReduce();
  funnel->SetDeadline(&other, 100);
  EXPECT_EQ(other.options.deadline.at_ns, 100 + kSecond);
}

TEST_F(CallFunnelTest, AfterTheEndNothingStartsAndNoNumberIsUsed) {
  end.Set(absl::AbortedError("over"));
  EXPECT_EQ(funnel->Start(AllReduce(), 0).status().message(), "over");
  EXPECT_EQ(funnel->TakeNumbers(AllReduce(), 2).status().message(), "over");
  Admitted admitted;
  EXPECT_EQ(funnel->Admit(AllReduce(), &admitted).message(), "over");
  EXPECT_EQ(funnel->last_sequence(), 0u);
  EXPECT_EQ(submitted, 0);
  EXPECT_EQ(funnel->calls(), 0u);
}

TEST_F(CallFunnelTest, ACallOfTheInlinePathGetsPlanAndNumberAndIsNotSubmitted) {
  Admitted admitted;
  ASSERT_TRUE(funnel->Admit(AllReduce(), &admitted).ok());
  EXPECT_NE(admitted.plan, nullptr);
  EXPECT_EQ(admitted.wiring.sequence, 0u);
  EXPECT_FALSE(admitted.waits);
  EXPECT_EQ(submitted, 0);
  EXPECT_EQ(Started(AllReduce()).number(), 2u);
}

TEST_F(CallFunnelTest, AReceiveFromAnyPeerHasNoNumberUntilItsTurn) {
  CallWork& any = Started(Message(CallKind::kRecvAny, -1));
  EXPECT_TRUE(any.waits());
  EXPECT_TRUE(funnel->TakeTurns([](uint32_t) { return -1; }).empty()) << "nothing has come";
  EXPECT_EQ(funnel->TakeTurns([](uint32_t) { return 2; }), std::vector<CallWork*>{&any});
  EXPECT_EQ(any.number(), 1u);
  EXPECT_EQ(any.peer(), 2);
  EXPECT_EQ(funnel->NextFrom(Tag::kUntagged, 2), 1u);
  EXPECT_EQ(funnel->NextFrom(Tag::kUntagged, 0), 0u);
}

TEST_F(CallFunnelTest, ReceivesBehindItInItsTagWaitToo) {
  CallWork& any = Started(Message(CallKind::kRecvAny, -1, 3));
  CallWork& behind = Started(Message(CallKind::kRecv, 0, 3));
  EXPECT_TRUE(behind.waits());
  EXPECT_FALSE(Started(Message(CallKind::kRecv, 0, 4)).waits()) << "another tag";
  EXPECT_FALSE(Started(Message(CallKind::kSend, 0, 3)).waits()) << "a send";
  Admitted admitted;
  ASSERT_TRUE(funnel->Admit(Message(CallKind::kRecv, 0, 3), &admitted).ok());
  EXPECT_TRUE(admitted.waits);
  EXPECT_EQ(admitted.plan, nullptr);
  EXPECT_EQ(funnel->TakeTurns([](uint32_t) { return 0; }), (std::vector<CallWork*>{&any, &behind}));
  EXPECT_EQ(any.number(), 1u);
  EXPECT_EQ(behind.number(), 2u);
}

TEST_F(CallFunnelTest, AReceiveThatLeavesItsLineLetsTheNextHaveItsTurn) {
  CallWork& any = Started(Message(CallKind::kRecvAny, -1));
  CallWork& behind = Started(Message(CallKind::kRecv, 0));
  funnel->LeaveLine(&any);
  EXPECT_EQ(funnel->TakeTurns([](uint32_t) { return -1; }), std::vector<CallWork*>{&behind});
  EXPECT_FALSE(Started(Message(CallKind::kRecv, 0)).waits()) << "the line is gone";
}

TEST_F(CallFunnelTest, ReceivesThatTheDriverHasNotStartedKeepTheirPlace) {
  Started(Message(CallKind::kRecvAny, -1)).started = false;
  EXPECT_TRUE(funnel->TakeTurns([](uint32_t) { return 0; }).empty());
}

TEST_F(CallFunnelTest, KnowsWhatItHasMade) {
  const CallId first{Tag::kUntagged, 0};
  EXPECT_TRUE(funnel->HasStarted(CallFunnel::kPing));
  EXPECT_FALSE(funnel->HasStarted(first));
  Started(AllReduce());
  EXPECT_TRUE(funnel->HasStarted(first));
  EXPECT_FALSE(funnel->HasMade(0, Asked::kSend, first));
  Started(Message(CallKind::kSend, 0));
  EXPECT_TRUE(funnel->HasMade(0, Asked::kSend, first));
  EXPECT_FALSE(funnel->HasMade(2, Asked::kSend, first)) << "another peer";
  EXPECT_FALSE(funnel->HasMade(2, Asked::kRecv, first));
  Started(Message(CallKind::kRecvAny, -1));
  EXPECT_TRUE(funnel->HasMade(2, Asked::kRecv, first)) << "it would take the peer's message";
  EXPECT_FALSE(funnel->HasMade(2, Asked::kRecv, {Tag::kUntagged, 1}));
}

TEST_F(CallFunnelTest, ACallOfSeveralPartsTakesItsNumbersTogether) {
  const std::vector<Wiring> numbers = funnel->TakeNumbers(AllReduce(), 3).value();
  ASSERT_EQ(numbers.size(), 3u);
  EXPECT_EQ(numbers[2].sequence, 2u);
  EXPECT_EQ(funnel->calls(), 1u);
  works.push_back(funnel->LaunchPart(AllReduce(), numbers[1], {}, 0).value());
  EXPECT_EQ(static_cast<CallWork&>(*works.back()).number(), 2u);
  EXPECT_EQ(funnel->calls(), 1u) << "a part is no call";
  EXPECT_EQ(Started(AllReduce()).number(), 4u);
}

TEST_F(CallFunnelTest, ARefusedCallIsNamedByTheNumberThatItWouldHave) {
  Started(AllReduce());
  const auto refusal = funnel->Refuse(AllReduce(), "why");
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->kind, Asked::kCollective);
  EXPECT_EQ(refusal->call, (CallId{Tag::kUntagged, 1}));
  EXPECT_EQ(refusal->why, "why");
  EXPECT_FALSE(funnel->Refuse(AllReduce(), "why").has_value()) << "tried again";
  EXPECT_EQ(funnel->Refuse(Message(CallKind::kSend, 0), "why")->kind, Asked::kSend);
  EXPECT_FALSE(funnel->Refuse(Message(CallKind::kSend, kMe), "why").has_value()) << "to itself";
  EXPECT_FALSE(funnel->Refuse(Message(CallKind::kSend, kRanks), "why").has_value()) << "no rank";
  end.Set(absl::AbortedError("over"));
  EXPECT_FALSE(funnel->Refuse(AllReduce(), "another reason").has_value());
}

TEST_F(CallFunnelTest, SaysWhichAlgorithmAndWhy) {
  ASSERT_TRUE(funnel->AlgorithmFor(CallKind::kAllReduce, 100, DType::kF32).ok());
  EXPECT_FALSE(funnel->Explain(CallKind::kAllReduce, 100, DType::kF32)->empty());
}

TEST(CommEndTest, TheFirstStatusCounts) {
  CommEnd end;
  EXPECT_FALSE(end.ended());
  EXPECT_TRUE(end.status().ok());
  end.Set(absl::AbortedError("first"));
  end.Set(absl::AbortedError("second"));
  EXPECT_TRUE(end.ended());
  EXPECT_EQ(end.status().message(), "first");
  end.Complete(absl::AbortedError("first, by rank 2"));
  EXPECT_EQ(end.status().message(), "first, by rank 2");
}

}  // namespace
}  // namespace entrain
