#include "transports/matching.h"

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/transfer.h"

namespace entrain {
namespace {

class NoEndpoint final : public Endpoint {
 public:
  void PostSend(const Envelope&, ConstBytes, Completion*) override {}
  void PostRecv(const Envelope&, Bytes, Completion*, RecvHint) override {}
  bool HasEarly(Tag) const override { return false; }
  void SendControl(absl::string_view) override {}
  void Revoke(Context, Context, const absl::Status&) override {}
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "none"; }
};

class MatchQueueTest : public testing::Test, public Events {
 public:
  bool Accepts(Context context) override { return context != 9; }
  void OnEarly(Endpoint&, const Envelope&) override { ++early; }
  void OnControl(Endpoint&, absl::string_view) override {}
  void OnLost(Endpoint&, const absl::Status&) override {}

  static Envelope Message(uint32_t tag, Context context = 1) {
    return {Tag(context, tag, 0, 0), {.kind = CallKind::kSend, .count = 4}};
  }
  static Bytes Of(std::string& text) {
    return {reinterpret_cast<std::byte*>(text.data()), text.size()};
  }
  // Writes `text` to the address that the queue has chosen.
  bool Write(Incoming* incoming, absl::string_view text) {
    if (!incoming->dropped()) {
      std::memcpy(incoming->writable().data(), text.data(), text.size());
    }
    return queue.Advance(incoming, static_cast<int64_t>(text.size()));
  }

  int early = 0;
  NoEndpoint endpoint;
  CompletionList completions;
  MatchQueue queue{&endpoint, this, &completions, 10000};
};

TEST_F(MatchQueueTest, DeliversToAPostedReceive) {
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), nullptr);
  EXPECT_EQ(queue.posted(), 1);
  ASSERT_TRUE(queue.Deliver(Message(1), AsBytes("abcd")).ok());
  EXPECT_EQ(receive.times, 0);
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_TRUE(receive.status.ok());
  EXPECT_EQ(in, "abcd");
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(4));
  EXPECT_EQ(early, 0);
}

TEST_F(MatchQueueTest, KeepsEarlyMessagesInOrderAndReturnsTheirCredit) {
  for (const char* text : {"aaaa", "bbbb", "cccc"}) {
    ASSERT_TRUE(queue.Deliver(Message(1), AsBytes(text)).ok());
  }
  EXPECT_EQ(early, 3);
  EXPECT_TRUE(queue.HasEarly(Message(1).tag));
  EXPECT_FALSE(queue.HasEarly(Message(2).tag));
  EXPECT_EQ(queue.early_bytes(), 3 * MatchQueue::CostOf(4));
  EXPECT_EQ(queue.TakeReleased(), 0);
  for (const char* text : {"aaaa", "bbbb", "cccc"}) {
    Transfer receive;
    std::string in(4, '-');
    queue.Post(Message(1), Of(in), &receive);
    EXPECT_EQ(in, text);
    EXPECT_EQ(completions.Run(), 1);
    EXPECT_TRUE(receive.status.ok());
  }
  EXPECT_FALSE(queue.HasEarly(Message(1).tag));
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), 3 * MatchQueue::CostOf(4));
}

TEST_F(MatchQueueTest, AReceiveClaimsAMessageThatIsHalfThere) {
  Incoming* incoming = queue.Begin(Message(1), 4).value();
  EXPECT_FALSE(Write(incoming, "ab"));
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), nullptr);
  EXPECT_EQ(completions.Run(), 0);
  EXPECT_EQ(in, "ab--");
  EXPECT_TRUE(Write(incoming, "cd"));
  EXPECT_EQ(in, "abcd");
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_EQ(queue.early_bytes(), 0);
}

TEST_F(MatchQueueTest, AnIncompleteMessageBecomesCompleteAndWaits) {
  Incoming* incoming = queue.Begin(Message(1), 4).value();
  EXPECT_TRUE(Write(incoming, "abcd"));
  Transfer receive;
  std::string in(4, '-');
  queue.Post(Message(1), Of(in), &receive);
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_EQ(in, "abcd");
}

TEST_F(MatchQueueTest, RtsAreGivenToTheReceiveInOrderWithEagerOnes) {
  EXPECT_EQ(queue.OnRts(Message(1), 4, 77).value(), nullptr);
  EXPECT_TRUE(queue.HasEarly(Message(1).tag));
  ASSERT_TRUE(queue.Deliver(Message(1), AsBytes("late")).ok());
  Transfer first, second;
  std::string in1(4, '-'), in2(4, '-');
  Incoming* incoming = queue.Post(Message(1), Of(in1), &first);
  ASSERT_NE(incoming, nullptr);
  EXPECT_EQ(incoming->handle(), 77u);
  EXPECT_FALSE(incoming->dropped());
  EXPECT_EQ(queue.Post(Message(1), Of(in2), &second), nullptr);
  EXPECT_EQ(in2, "late");
  EXPECT_TRUE(Write(incoming, "long"));
  EXPECT_EQ(completions.Run(), 2);
  EXPECT_EQ(in1, "long");
}

// Data that comes ahead of its receive: some bytes before the receive is posted, some after.
TEST_F(MatchQueueTest, DataThatWentAheadIsKeptUntilItsReceiveIsPosted) {
  Incoming* const incoming = queue.OnRts(Message(1), 4, 7, /*ahead=*/true).value();
  ASSERT_NE(incoming, nullptr);
  EXPECT_TRUE(incoming->unclaimed());
  EXPECT_EQ(early, 1);
  ASSERT_TRUE(queue.Ahead(incoming, 3).ok());
  incoming->Begin(3);
  EXPECT_EQ(queue.early_bytes(), MatchQueue::CostOf(3));
  EXPECT_FALSE(Write(incoming, "ab"));
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), incoming);
  EXPECT_FALSE(incoming->unclaimed());
  EXPECT_EQ(in.substr(0, 2), "ab");
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(3));
  EXPECT_FALSE(Write(incoming, "c"));
  ASSERT_TRUE(queue.Ahead(incoming, 1).ok());  // sent before the CTS had arrived
  incoming->Begin(1);
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(1));
  EXPECT_TRUE(Write(incoming, "d"));
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_TRUE(receive.status.ok());
  EXPECT_EQ(in, "abcd");
  EXPECT_EQ(queue.TakeReleased(), 0);
}

TEST_F(MatchQueueTest, AMessageThatWentAheadWholeIsLikeAnEagerOne) {
  Incoming* const incoming = queue.OnRts(Message(1), 4, 7, /*ahead=*/true).value();
  for (const char* const part : {"ab", "cd"}) {
    ASSERT_TRUE(queue.Ahead(incoming, 2).ok());
    incoming->Begin(2);
    Write(incoming, part);
  }
  EXPECT_EQ(queue.early_bytes(), 2 * MatchQueue::CostOf(2));
  queue.FailAll(absl::UnavailableError("the peer has ended"));
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), nullptr);
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_TRUE(receive.status.ok()) << receive.status;
  EXPECT_EQ(in, "abcd");
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), 2 * MatchQueue::CostOf(2));
}

TEST_F(MatchQueueTest, WhatWentAheadCountsAgainstTheLimitAndIsReturnedByARevocation) {
  Incoming* const incoming = queue.OnRts(Message(1), 30000, 7, /*ahead=*/true).value();
  ASSERT_TRUE(queue.Ahead(incoming, 9000).ok());
  incoming->Begin(9000);
  EXPECT_FALSE(queue.Ahead(incoming, 9000).ok());
  queue.Lend(9000);
  ASSERT_TRUE(queue.Ahead(incoming, 9000).ok());
  incoming->Begin(9000);
  std::vector<uint64_t> refused;
  queue.Revoke(1, absl::AbortedError("revoked"), &refused);
  EXPECT_EQ(refused, std::vector<uint64_t>{7});
  EXPECT_TRUE(incoming->dropped());
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), 2 * MatchQueue::CostOf(9000));
  ASSERT_TRUE(queue.Ahead(incoming, 100).ok());  // was on its way
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(100));
  queue.Abandon(incoming);
}

TEST_F(MatchQueueTest, AWithdrawnMessageThatWentAheadFailsItsReceive) {
  Incoming* const incoming = queue.OnRts(Message(1), 4, 7, /*ahead=*/true).value();
  ASSERT_TRUE(queue.Ahead(incoming, 2).ok());
  incoming->Begin(2);
  Write(incoming, "ab");
  queue.Withdraw(incoming, absl::AbortedError("withdrawn"));
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), nullptr);
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_EQ(receive.status, absl::AbortedError("withdrawn"));
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(2));
}

TEST_F(MatchQueueTest, AMismatchNamesBothAndWritesNothing) {
  Transfer receive;
  std::string in(4, '-');
  queue.Post(Message(1), Of(in), &receive);
  ASSERT_TRUE(queue.Deliver(Message(1), AsBytes("abcde")).ok());
  completions.Run();
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(receive.status.message().find("4 bytes"), absl::string_view::npos) << receive.status;
  EXPECT_NE(receive.status.message().find("5 bytes"), absl::string_view::npos) << receive.status;
  EXPECT_EQ(in, "----");
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(5));
}

TEST_F(MatchQueueTest, AMismatchedRtsIsHandedOutDropped) {
  queue.OnRts(Message(1), 5, 3).value();
  Transfer receive;
  std::string in(4, '-');
  Incoming* incoming = queue.Post(Message(1), Of(in), &receive);
  ASSERT_NE(incoming, nullptr);
  EXPECT_TRUE(incoming->dropped());
  queue.Abandon(incoming);
  EXPECT_EQ(completions.Run(), 1);
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(MatchQueueTest, RevokeTakesOneContextOnly) {
  Transfer mine, other, claimed;
  std::string in(4, '-'), in2(4, '-'), in3(4, '-');
  queue.Post(Message(1), Of(in), &mine);
  queue.Post(Message(1, 2), Of(in2), &other);
  queue.OnRts(Message(2), 4, 5).value();
  ASSERT_TRUE(queue.Deliver(Message(3), AsBytes("abcd")).ok());
  Incoming* half = queue.Begin(Message(4), 4).value();
  Write(half, "ab");
  queue.Post(Message(4), Of(in3), &claimed);
  std::vector<uint64_t> refused;
  queue.Revoke(1, absl::AbortedError("x"), &refused);
  EXPECT_EQ(refused, std::vector<uint64_t>{5});
  EXPECT_EQ(mine.times, 0);
  EXPECT_EQ(completions.Run(), 2);
  EXPECT_EQ(mine.times + claimed.times, 2);
  EXPECT_EQ(other.times, 0);
  EXPECT_TRUE(half->dropped());
  EXPECT_TRUE(half->writable().empty());
  EXPECT_TRUE(queue.Advance(half, 2));
  EXPECT_EQ(in3, "ab--");
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.posted(), 1);
}

TEST_F(MatchQueueTest, UnacceptedContextsAreDropped) {
  ASSERT_TRUE(queue.Deliver(Message(1, 9), AsBytes("abcd")).ok());
  Incoming* rts = queue.OnRts(Message(1, 9), 4, 1).value();
  ASSERT_NE(rts, nullptr);
  EXPECT_TRUE(rts->dropped());
  queue.Abandon(rts);
  EXPECT_EQ(early, 0);
  EXPECT_EQ(queue.early_bytes(), 0);
  EXPECT_EQ(queue.TakeReleased(), MatchQueue::CostOf(4));
}

TEST_F(MatchQueueTest, MoreEarlyBytesThanTheLimitAreRefused) {
  const std::string big(9000, 'x');
  ASSERT_TRUE(queue.Deliver(Message(1), AsBytes(big)).ok());
  EXPECT_EQ(queue.Deliver(Message(2), AsBytes(big)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.Begin(Message(2), int64_t{1} << 60).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(MatchQueueTest, WithdrawnRtsFailWhoeverClaimsThem) {
  queue.OnRts(Message(1), 4, 1).value();
  EXPECT_TRUE(queue.Withdraw(Message(1).tag, 1, absl::AbortedError("gone")));
  EXPECT_FALSE(queue.Withdraw(Message(1).tag, 2, absl::AbortedError("gone")));
  Transfer receive;
  std::string in(4, '-');
  EXPECT_EQ(queue.Post(Message(1), Of(in), &receive), nullptr);
  completions.Run();
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kAborted);
}

TEST_F(MatchQueueTest, FailAllCompletesEverythingOnce) {
  std::deque<Transfer> receives(100);
  std::vector<std::string> ins(100, std::string(4, '-'));
  for (uint32_t i = 0; i < 100; ++i) {
    queue.Post(Message(i), Of(ins[i]), &receives[i]);
  }
  for (uint32_t i = 0; i < 10; ++i) {
    queue.Begin(Message(i), 4).value();
    ASSERT_TRUE(queue.Deliver(Message(1000 + i), AsBytes("abcd")).ok());
    queue.OnRts(Message(2000 + i), 4, i).value();
  }
  queue.FailAll(absl::UnavailableError("gone"));
  EXPECT_EQ(completions.Run(), 100);
  for (const Transfer& receive : receives) {
    EXPECT_EQ(receive.times, 1);
    EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(queue.expecting());
}

TEST_F(MatchQueueTest, ThousandsOfTagsAndOfMessagesPerTagStayApart) {
  std::deque<Transfer> receives;
  std::deque<std::string> ins;
  for (uint32_t i = 0; i < 3000; ++i) {
    queue.Post(Message(i % 1000), Of(ins.emplace_back(4, '-')), &receives.emplace_back());
  }
  for (uint32_t i = 0; i < 3000; ++i) {
    std::string text(4, static_cast<char>('a' + i / 1000));
    ASSERT_TRUE(queue.Deliver(Message(999 - i % 1000), AsBytes(text)).ok());
  }
  EXPECT_EQ(completions.Run(), 3000);
  for (uint32_t i = 0; i < 3000; ++i) {
    EXPECT_EQ(ins[i], std::string(4, static_cast<char>('a' + i / 1000)));
  }
  EXPECT_EQ(early, 0);
}

}  // namespace
}  // namespace entrain
