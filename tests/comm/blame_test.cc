#include "lib/comm/failure/blame.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr CallId kCall{7, 41};
using Answer = BlameDecision::Answer;

TEST(BlameDecision, SilentRankIsGuiltyBeforeAbsentOne) {
  BlameDecision machine(0, 4);
  const auto query = machine.OnExpired(kCall, 1000);
  ASSERT_TRUE(query.has_value());
  machine.OnAnswer(1, query->nonce, Answer::kAbsent);
  machine.OnAnswer(3, query->nonce, Answer::kStarted);
  EXPECT_FALSE(machine.OnTick(1000).has_value());
  EXPECT_EQ(machine.next_tick().at_ns, 1000 + BlameDecision::kAnswerNs);
  const auto verdict = machine.OnTick(1000 + BlameDecision::kAnswerNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 2);
  EXPECT_EQ(verdict->call, kCall);
}

TEST(BlameDecision, AbsentRanksAreNamedAsSoonAsAllHaveAnswered) {
  BlameDecision machine(2, 4);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(0, query->nonce, Answer::kStarted);
  machine.OnAnswer(1, query->nonce, Answer::kAbsent);
  machine.OnAnswer(3, query->nonce, Answer::kAbsent);
  EXPECT_TRUE(machine.next_tick().Passed(5));
  const auto verdict = machine.OnTick(5);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 1);
  EXPECT_NE(verdict->reason.find("ranks 1, 3"), std::string::npos) << verdict->reason;
}

TEST(BlameDecision, NobodyIsGuiltyWhenAllHaveStarted) {
  BlameDecision machine(0, 2);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(1, query->nonce, Answer::kStarted);
  const auto verdict = machine.OnTick(6);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, -1);
}

TEST(BlameDecision, AnswersToAnEarlierInquiryDoNotCount) {
  BlameDecision machine(0, 2);
  const auto first = machine.OnExpired(kCall, 5);
  machine.OnFinished();
  EXPECT_FALSE(machine.OnTick(5 + BlameDecision::kAnswerNs).has_value());
  const auto second = machine.OnExpired({7, 42}, 10);
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(machine.OnAnswer(1, first->nonce, Answer::kStarted));
  EXPECT_FALSE(machine.OnTick(11).has_value());
  EXPECT_TRUE(machine.OnAnswer(1, second->nonce, Answer::kStarted));
  EXPECT_TRUE(machine.OnTick(11).has_value());
}

TEST(BlameDecision, RanksThatLeftAreNotWaitedFor) {
  BlameDecision machine(0, 3);
  machine.OnLeft(2);
  const auto query = machine.OnExpired(kCall, 5);
  machine.OnAnswer(1, query->nonce, Answer::kStarted);
  const auto verdict = machine.OnTick(5);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 2);
  EXPECT_EQ(verdict->reason, "it has destroyed its communicator");
}

TEST(BlameDecision, LostRankIsGuiltyAfterTheGrace) {
  BlameDecision machine(0, 4);
  machine.OnLost(3, 100);
  machine.OnLost(1, 200);  // exited because of the first
  EXPECT_TRUE(machine.losing());
  EXPECT_FALSE(machine.OnTick(100 + BlameDecision::kGraceNs - 1).has_value());
  const auto verdict = machine.OnTick(100 + BlameDecision::kGraceNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_TRUE(verdict->lost);
  EXPECT_EQ(verdict->guilty, 3);
  EXPECT_FALSE(machine.losing());
}

TEST(BlameDecision, RankLostDuringAnInquiryIsNotTakenForSilent) {
  BlameDecision machine(0, 3);
  const int64_t lost_at = BlameDecision::kAnswerNs - kMillisecond;
  ASSERT_TRUE(machine.OnExpired(kCall, 0).has_value());
  machine.OnLost(2, lost_at);
  const auto verdict = machine.OnTick(BlameDecision::kAnswerNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->lost);
  EXPECT_EQ(verdict->guilty, 1);
}

TEST(BlameDecision, OneInquiryAtATime) {
  BlameDecision machine(0, 2);
  EXPECT_TRUE(machine.OnExpired(kCall, 5).has_value());
  EXPECT_FALSE(machine.OnExpired({0, 1}, 6).has_value());
}

TEST(BlameDecision, MemberWithAnExcuseIsNamedAfterOneWithout) {
  BlameDecision machine(0, 4);
  const auto query = machine.OnExpired(kCall, 0);
  machine.OnAnswer(1, query->nonce, Answer::kExcused);
  machine.OnAnswer(2, query->nonce, Answer::kStarted);
  machine.OnAnswer(3, query->nonce, Answer::kAbsent);
  const auto verdict = machine.OnTick(1);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 3);
  EXPECT_EQ(verdict->answer, Answer::kAbsent);
  EXPECT_EQ(verdict->reason.find("1"), std::string::npos) << verdict->reason;
  EXPECT_EQ(verdict->late, (std::vector<int>{1, 3}));
}

TEST(BlameDecision, AllThatHaveNotComeAreNamedWhateverKeepsThem) {
  BlameDecision machine(0, 5);
  const auto query = machine.OnExpired(kCall, 0);
  machine.OnAnswer(1, query->nonce, Answer::kAbsent);
  machine.OnAnswer(2, query->nonce, Answer::kStarted);
  machine.OnAnswer(4, query->nonce, Answer::kAbsent);
  const auto verdict = machine.OnTick(BlameDecision::kAnswerNs);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 3);
  EXPECT_EQ(verdict->reason, "it does not answer (not started: ranks 1, 4)");
  EXPECT_EQ(verdict->late, (std::vector<int>{1, 3, 4}));
}

TEST(BlameDecision, MemberThatFindsOutForWhomItWaitsIsGivenTheTimeOnce) {
  constexpr int64_t kAnswer = BlameDecision::kAnswerNs;
  BlameDecision machine(0, 2);
  const auto query = machine.OnExpired(kCall, 0);
  machine.OnAnswer(1, query->nonce, Answer::kElsewhere, {2 * kAnswer});
  EXPECT_FALSE(machine.OnTick(kAnswer).has_value());
  EXPECT_EQ(machine.next_tick().at_ns, 2 * kAnswer);
  machine.OnAnswer(1, query->nonce, Answer::kElsewhere, {4 * kAnswer});
  EXPECT_EQ(machine.next_tick().at_ns, 2 * kAnswer) << "ranks that wait for each other";
  machine.OnAnswer(1, query->nonce, Answer::kExcused);
  const auto verdict = machine.OnTick(kAnswer);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->answer, Answer::kExcused);

  const auto again = machine.OnExpired(kCall, 0);
  machine.OnAnswer(1, again->nonce, Answer::kElsewhere, {2 * kAnswer});
  const auto unknown = machine.OnTick(2 * kAnswer);
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->answer, Answer::kElsewhere);
}

// With a round trip of 300 ms, a question at the deadline is answered 300 ms later.
TEST(BlameDecision, AnswersAndReasonsFromAfarAreAwaited) {
  constexpr int64_t kTrip = 300 * kMillisecond;
  BlameDecision machine(0, 3);
  const auto query = machine.OnExpired(kCall, 0, BlameDecision::kAnswerNs + 2 * kTrip);
  EXPECT_FALSE(machine.OnTick(kTrip - 1).has_value());
  machine.OnAnswer(1, query->nonce, Answer::kStarted);
  machine.OnAnswer(2, query->nonce, Answer::kAbsent);
  const auto verdict = machine.OnTick(kTrip);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->guilty, 2);

  machine.OnLost(1, 0, BlameDecision::kGraceNs + kTrip);
  EXPECT_FALSE(machine.OnTick(BlameDecision::kGraceNs + kTrip - 1).has_value());
  EXPECT_EQ(machine.OnTick(BlameDecision::kGraceNs + kTrip)->guilty, 1);
}

}  // namespace
}  // namespace entrain
