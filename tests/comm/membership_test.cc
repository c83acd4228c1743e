#include "lib/comm/membership.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr CallId kCall{7, 41};

TEST(Membership, SilentRankIsGuiltyBeforeAbsentOne) {
  Membership machine(0, 4);
  const auto query = machine.OnExpired(kCall, 1000);
  ASSERT_TRUE(query.has_value());
  machine.OnAnswer(1, query->nonce, false);
  machine.OnAnswer(3, query->nonce, true);
  EXPECT_FALSE(machine.OnTick(1000).has_value());
  EXPECT_EQ(machine.next_tick().at_ns, 1000 + Membership::kAnswerNs);
  const auto verdict = machine.OnTick(1000 + Membership::kAnswerNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 2);
  EXPECT_EQ(verdict->call, kCall);
}

TEST(Membership, AbsentRanksAreNamedAsSoonAsAllHaveAnswered) {
  Membership machine(2, 4);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(0, query->nonce, true);
  machine.OnAnswer(1, query->nonce, false);
  machine.OnAnswer(3, query->nonce, false);
  EXPECT_TRUE(machine.next_tick().Passed(5));
  const auto verdict = machine.OnTick(5);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 1);
  EXPECT_NE(verdict->reason.find("ranks 1, 3"), std::string::npos) << verdict->reason;
}

TEST(Membership, NobodyIsGuiltyWhenAllHaveStarted) {
  Membership machine(0, 2);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(1, query->nonce, true);
  const auto verdict = machine.OnTick(6);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, -1);
}

TEST(Membership, AnswersToAnEarlierInquiryDoNotCount) {
  Membership machine(0, 2);
  const auto first = machine.OnExpired(kCall, 5);
  machine.OnFinished();
  EXPECT_FALSE(machine.OnTick(5 + Membership::kAnswerNs).has_value());
  const auto second = machine.OnExpired({7, 42}, 10);
  ASSERT_TRUE(second.has_value());
  machine.OnAnswer(1, first->nonce, true);
  EXPECT_FALSE(machine.OnTick(11).has_value());
  machine.OnAnswer(1, second->nonce, true);
  EXPECT_TRUE(machine.OnTick(11).has_value());
}

TEST(Membership, RanksThatLeftAreNotWaitedFor) {
  Membership machine(0, 3);
  machine.OnLeft(2);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(1, query->nonce, true);
  const auto verdict = machine.OnTick(5);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 2);
  EXPECT_EQ(verdict->reason, "it has destroyed its communicator");
}

TEST(Membership, LostRankIsGuiltyAfterTheGrace) {
  Membership machine(0, 4);
  machine.OnLost(3, 100);
  machine.OnLost(1, 200);  // went because of the first
  EXPECT_TRUE(machine.losing());
  EXPECT_FALSE(machine.OnTick(100 + Membership::kGraceNs - 1).has_value());
  const auto verdict = machine.OnTick(100 + Membership::kGraceNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_TRUE(verdict->lost);
  EXPECT_EQ(verdict->guilty, 3);
  EXPECT_FALSE(machine.losing());
}

TEST(Membership, RankLostDuringAnInquiryIsNotTakenForSilent) {
  Membership machine(0, 3);
  const int64_t lost_at = Membership::kAnswerNs - kMillisecond;
  ASSERT_TRUE(machine.OnExpired(kCall, 0).has_value());
  machine.OnLost(2, lost_at);
  const auto verdict = machine.OnTick(Membership::kAnswerNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->lost);
  EXPECT_EQ(verdict->guilty, 1);
}

TEST(Membership, OneInquiryAtATime) {
  Membership machine(0, 2);
  EXPECT_TRUE(machine.OnExpired(kCall, 5).has_value());
  EXPECT_FALSE(machine.OnExpired({0, 1}, 6).has_value());
}

}  // namespace
}  // namespace entrain
