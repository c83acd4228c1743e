#include "lib/comm/failure/survivor_messages.h"

#include <string>

#include "gtest/gtest.h"

namespace entrain {
namespace {

using Type = SurvivorMessageType;

constexpr int kSize = 11;

RankSet Ranks(const std::vector<int>& ranks) {
  RankSet set(kSize);
  for (const int rank : ranks) {
    set.Add(rank);
  }
  return set;
}

SurvivorDecision SomeDecision() {
  SurvivorDecision decision;
  decision.kind = SurvivorCallKind::kShrink;
  decision.error = SurvivorDecision::Error::kPolicies;
  decision.any = true;
  decision.culprit = 10;
  decision.flag = 0x12345678;
  decision.members = Ranks({0, 7, 10});
  decision.contexts = {5, 65535, 6};
  return decision;
}

// Reads the number and the type, which begin every message.
void ReadHead(Reader* in, Type type) {
  EXPECT_EQ(in->Get<uint32_t>(), 42u);
  EXPECT_EQ(in->Get<Type>(), type);
}

TEST(SurvivorMessages, ADecisionArrivesUnchanged) {
  const std::string text = SomeDecision().ToText(42);
  Reader in(text);
  ReadHead(&in, Type::kDecision);
  SurvivorDecision read;
  EXPECT_TRUE(read.Read(&in, kSize));
  EXPECT_TRUE(in.Finished());
  EXPECT_EQ(read, SomeDecision());
}

TEST(SurvivorMessages, AReportArrivesUnchanged) {
  for (const bool accepted : {false, true}) {
    SurvivorReport sent;
    sent.called = sent.asks = true;
    sent.kind = SurvivorCallKind::kShrink;
    sent.flag = 7;
    sent.context = 9;
    sent.cut = Ranks({1, 2, 9});
    sent.gone = Ranks({2});
    sent.exclude = Ranks({3});
    if (accepted) {
      sent.accepted = {{4, 17}, SomeDecision()};
    }
    const std::string text = sent.ToText(42);
    Reader in(text);
    ReadHead(&in, Type::kReport);
    SurvivorReport read;
    ASSERT_TRUE(read.Read(&in, kSize));
    EXPECT_TRUE(read.called);
    EXPECT_TRUE(read.asks);
    EXPECT_FALSE(read.given_up);
    EXPECT_FALSE(read.any);
    EXPECT_EQ(read.kind, SurvivorCallKind::kShrink);
    EXPECT_EQ(read.flag, 7u);
    EXPECT_EQ(read.context, 9);
    EXPECT_EQ(read.cut, sent.cut);
    EXPECT_EQ(read.gone, sent.gone);
    EXPECT_EQ(read.exclude, sent.exclude);
    EXPECT_EQ(read.accepted.ballot, sent.accepted.ballot);
    EXPECT_TRUE(!accepted || read.accepted.decision == SomeDecision());
  }
}

TEST(SurvivorMessages, AProposalAndItsAcceptanceArriveUnchanged) {
  const std::string text = SurvivorProposal{3, Ranks({8}), SomeDecision()}.ToText(42);
  Reader in(text);
  ReadHead(&in, Type::kProposal);
  SurvivorProposal proposal;
  ASSERT_TRUE(proposal.Read(&in, kSize));
  EXPECT_EQ(proposal.attempt, 3u);
  EXPECT_EQ(proposal.gone, Ranks({8}));
  EXPECT_EQ(proposal.decision, SomeDecision());
  const std::string answer = SurvivorAcceptance{3}.ToText(42);
  Reader in_answer(answer);
  ReadHead(&in_answer, Type::kAcceptance);
  SurvivorAcceptance acceptance;
  ASSERT_TRUE(acceptance.Read(&in_answer));
  EXPECT_EQ(acceptance.attempt, 3u);
}

// Returns true if the text of a message of type T is read without an error.
template <typename T>
bool Reads(const std::string& text) {
  Reader in(text);
  in.Get<uint32_t>();
  in.Get<Type>();
  T message;
  if constexpr (std::is_same_v<T, SurvivorAcceptance>) {
    return message.Read(&in);
  } else {
    return message.Read(&in, kSize);
  }
}

TEST(SurvivorMessages, AMessageThatIsTooShortOrTooLongIsMalformed) {
  SurvivorReport report;
  report.cut = report.gone = report.exclude = RankSet(kSize);
  report.accepted = {{4, 17}, SomeDecision()};
  const std::string texts[] = {report.ToText(1),
                               SurvivorProposal{3, Ranks({}), SomeDecision()}.ToText(1),
                               SurvivorAcceptance{3}.ToText(1)};
  const auto reads = [](size_t which, const std::string& text) {
    return which == 0   ? Reads<SurvivorReport>(text)
           : which == 1 ? Reads<SurvivorProposal>(text)
                        : Reads<SurvivorAcceptance>(text);
  };
  for (size_t which = 0; which < std::size(texts); ++which) {
    EXPECT_TRUE(reads(which, texts[which]));
    EXPECT_FALSE(reads(which, texts[which] + "x"));
    for (size_t length = 0; length < texts[which].size(); ++length) {
      EXPECT_FALSE(reads(which, texts[which].substr(0, length))) << which << " " << length;
    }
  }
}

TEST(SurvivorMessages, ADecisionOfUnknownValuesIsMalformed) {
  const auto reads = [](const SurvivorDecision& decision) {
    return Reads<SurvivorDecision>(decision.ToText(1));
  };
  EXPECT_TRUE(reads(SomeDecision()));
  SurvivorDecision decision = SomeDecision();
  decision.kind = static_cast<SurvivorCallKind>(3);
  EXPECT_FALSE(reads(decision));
  decision = SomeDecision();
  decision.error = static_cast<SurvivorDecision::Error>(4);
  EXPECT_FALSE(reads(decision));
  for (const int culprit : {-2, kSize}) {
    decision = SomeDecision();
    decision.culprit = culprit;
    EXPECT_FALSE(reads(decision));
  }
  decision = SomeDecision();
  decision.members = RankSet(kSize);
  decision.contexts.clear();
  EXPECT_FALSE(reads(decision)) << "nobody goes on";
}

TEST(SurvivorMessages, ALaterLeaderOrAttemptIsHigher) {
  EXPECT_LT((SurvivorBallot{}), (SurvivorBallot{0, 1}));
  EXPECT_LT((SurvivorBallot{0, 9}), (SurvivorBallot{1, 1}));
  EXPECT_LT((SurvivorBallot{1, 1}), (SurvivorBallot{1, 2}));
}

}  // namespace
}  // namespace entrain
