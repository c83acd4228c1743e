// The contract of transports/transport.h, which is the same for every transport. Test names cite
// the numbers of its invariants. This file tests ordinary traffic (1, 2, 3, 6).
// endpoint_failure_test.cc: 3, 4, 7. endpoint_death_test.cc: 8. tcp_stranger_test.cc: 5.
#include "tests/transports/endpoint_contract.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "absl/strings/match.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
// Sizes around the limits at which a transport may behave differently: nothing, a line, a page,
// eager limits, frames.
constexpr int64_t kSizes[] = {0,         1,     7,          64,     4095, 4096,        4097,
                              64 * kKiB, 65537, 256 * kKiB, 262145, kMiB, 3 * kMiB + 5};

// Instantiated once for the tests of all files.
INSTANTIATE_TEST_SUITE_P(Every, EndpointContract, testing::ValuesIn(EveryTransport()),
                         [](const auto& test) { return test.param; });

TEST_P(EndpointContract, AddressIsPrintableAndShort) {
  Connect();
  const std::string address = a->transport->address();
  EXPECT_LE(address.size(), 1024u);
  EXPECT_FALSE(address.empty());
  EXPECT_TRUE(std::all_of(address.begin(), address.end(),
                          [](unsigned char c) { return c >= 32 && c < 127; }));
  EXPECT_THAT(to_b->peer_address(), HasSubstr(Beneath(GetParam())));
  EXPECT_EQ(a->transport->traits().name, Beneath(GetParam()));
  EXPECT_GE(a->transport->wait_fd(), 0);
}

TEST_P(EndpointContract, ReachesRefusesWhatItDidNotPublish) {
  Connect();
  for (const char* text : {"", "x", "1.2.3.4", "::::", "0/0", "-1", "\xff\xfe"}) {
    EXPECT_FALSE(a->transport->Reaches(text)) << text;
  }
}

TEST_P(EndpointContract, MovesEverySizeWhicheverIsPostedFirst) {
  Connect();
  for (const int64_t size : kSizes) {
    for (const bool receive_first : {true, false}) {
      const Buffer out = Pattern(size, static_cast<uint32_t>(size));
      Buffer in(out.size());
      Transfer send, receive;
      if (receive_first) {
        to_a->PostRecv(Message(1), Of(in), &receive);
        Settle();
      }
      to_b->PostSend(Message(1), Of(out), &send);
      if (!receive_first) {
        Settle();
        EXPECT_EQ(b->events.early.size(), 1u) << size;
        b->events.early.clear();
        to_a->PostRecv(Message(1), Of(in), &receive);
      }
      ASSERT_TRUE(PollBoth(send, receive)) << size;
      EXPECT_TRUE(send.status.ok()) << send.status;
      EXPECT_TRUE(receive.status.ok()) << receive.status;
      EXPECT_EQ(receive.bytes, size);
      EXPECT_EQ(send.bytes, size);
      EXPECT_TRUE(in == out) << size;
      EXPECT_TRUE(b->events.early.empty());
    }
  }
}

TEST_P(EndpointContract, PostingMayBeginBeforeTheConnectionStands) {
  Connect(/*wait=*/false);
  const Buffer small = Pattern(100, 1), large = Pattern(2 * kMiB, 2);
  Buffer small_in(small.size()), large_in(large.size());
  Transfer transfers[4];
  to_b->SendControl("first");
  to_b->PostSend(Message(1), Of(small), &transfers[0]);
  to_b->PostSend(Message(2), Of(large), &transfers[1]);
  to_a->PostRecv(Message(2), Of(large_in), &transfers[2]);
  to_a->PostRecv(Message(1), Of(small_in), &transfers[3]);
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(std::begin(transfers), std::end(transfers),
                       [](const Transfer& t) { return t.times == 1; });
  }));
  EXPECT_EQ(small_in, small);
  EXPECT_TRUE(large_in == large);
  EXPECT_THAT(b->events.controls, testing::ElementsAre("first"));
}

TEST_P(EndpointContract, Large64MiBBothWaysAtOnce) {
  Connect();
  const Buffer out_a = Pattern(64 * kMiB, 1), out_b = Pattern(64 * kMiB, 2);
  Buffer in_a(out_a.size()), in_b(out_b.size());
  Transfer sends[2], receives[2];
  to_b->PostRecv(Message(1), Of(in_a), &receives[0]);
  to_b->PostSend(Message(1), Of(out_a), &sends[0]);
  to_a->PostSend(Message(1), Of(out_b), &sends[1]);
  to_a->PostRecv(Message(1), Of(in_b), &receives[1]);
  ASSERT_TRUE(PollUntil(
      [&] { return sends[0].times + sends[1].times + receives[0].times + receives[1].times == 4; },
      60));
  EXPECT_TRUE(in_a == out_b);
  EXPECT_TRUE(in_b == out_a);
}

TEST_P(EndpointContract, Invariant1_OneTagArrivesInOrderAcrossSizes) {
  Connect();
  std::deque<Buffer> out, in;
  std::deque<Transfer> sends, receives;
  for (int i = 0; i < 200; ++i) {
    const int64_t size = kSizes[static_cast<size_t>(i * 7) % std::size(kSizes)] % (300 * kKiB);
    out.push_back(Pattern(size, static_cast<uint32_t>(i)));
    in.emplace_back(out.back().size());
    to_b->PostSend(Message(5), Of(std::as_const(out.back())), &sends.emplace_back());
    if (i % 3 == 0) {
      Poll();
    }
    if (i >= 100) {  // the first hundred come before their receives
      const auto next = static_cast<size_t>(i - 100);
      to_a->PostRecv(Message(5), Of(in[next]), &receives.emplace_back());
    }
  }
  for (size_t i = receives.size(); i < in.size(); ++i) {
    to_a->PostRecv(Message(5), Of(in[i]), &receives.emplace_back());
  }
  ASSERT_TRUE(PollUntil([&] { return receives.back().times > 0 && sends.back().times > 0; }));
  Settle();
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(receives[i].status.ok()) << i << ": " << receives[i].status;
    ASSERT_TRUE(in[i] == out[i]) << i;
  }
}

TEST_P(EndpointContract, Invariant2_AFloodThatNobodyReceivesHoldsUpNothing) {
  Connect();
  std::deque<Transfer> sends, receives;
  const Buffer small = Pattern(3000, 1), large = Pattern(2 * kMiB, 2), nothing;
  for (int i = 0; i < 6000; ++i) {
    to_b->PostSend(Message(1), Of(i % 2 == 0 ? small : nothing), &sends.emplace_back());
    if (i % 100 == 0) {
      Poll();
    }
  }
  for (int i = 0; i < 50; ++i) {
    to_b->PostSend(Message(2), Of(large), &sends.emplace_back());
  }
  Settle();
  to_b->SendControl("through");
  ExpectGood();          // small, on another context
  ExpectGood(kContext);  // and on the same context
  const Buffer out = Pattern(5 * kMiB, 3);
  Buffer in(out.size());
  Transfer send, receive;
  to_b->PostSend(Message(3), Of(out), &send);
  to_a->PostRecv(Message(3), Of(in), &receive);
  ASSERT_TRUE(PollBoth(send, receive));
  EXPECT_TRUE(in == out);
  EXPECT_THAT(b->events.controls, testing::ElementsAre("through"));

  std::vector<Buffer> ins(6050);
  for (size_t i = 0; i < ins.size(); ++i) {  // all messages still arrive
    const Buffer& expected = i >= 6000 ? large : (i % 2 == 0 ? small : nothing);
    ins[i].resize(expected.size());
    to_a->PostRecv(Message(i < 6000 ? 1 : 2), Of(ins[i]), &receives.emplace_back());
  }
  ASSERT_TRUE(PollUntil(
      [&] {
        return std::all_of(receives.begin(), receives.end(),
                           [](const Transfer& t) { return t.times == 1; }) &&
               std::all_of(sends.begin(), sends.end(),
                           [](const Transfer& t) { return t.times == 1; });
      },
      60));
  for (size_t i = 0; i < ins.size(); ++i) {
    const Buffer& expected = i >= 6000 ? large : (i % 2 == 0 ? small : nothing);
    ASSERT_TRUE(receives[i].status.ok() && ins[i] == expected) << i << receives[i].status;
  }
}

TEST_P(EndpointContract, Invariant2_ManyTagsInRandomOrderBothWays) {
  Connect();
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    constexpr int kMessages = 150;
    std::deque<Transfer> transfers;
    struct Move {
      Buffer out, in;
    };
    std::vector<Move> moves[2];
    std::vector<std::function<void()>> posts;
    for (int side = 0; side < 2; ++side) {
      moves[side].resize(kMessages);
      for (uint32_t i = 0; i < kMessages; ++i) {
        Move& move = moves[side][i];
        move.out = Pattern(kSizes[random() % 11], i);
        move.in.resize(move.out.size());
        Endpoint* from = side == 0 ? to_b.get() : to_a.get();
        Endpoint* to = side == 0 ? to_a.get() : to_b.get();
        Transfer *send = &transfers.emplace_back(), *receive = &transfers.emplace_back();
        posts.push_back(
            [=, &move] { from->PostSend(Message(i), Of(std::as_const(move.out)), send); });
        posts.push_back([=, &move] { to->PostRecv(Message(i), Of(move.in), receive); });
      }
    }
    std::shuffle(posts.begin(), posts.end(), random);
    for (const auto& post : posts) {
      post();
      if (random() % 4 == 0) {
        Poll();
      }
      if (random() % 16 == 0) {
        to_b->SendControl("between");
      }
    }
    ASSERT_TRUE(PollUntil([&] {
      return std::all_of(transfers.begin(), transfers.end(),
                         [](const Transfer& t) { return t.times == 1; });
    }));
    for (const auto& side : moves) {
      for (const Move& move : side) {
        ASSERT_TRUE(move.in == move.out);
      }
    }
  }
}

TEST_P(EndpointContract, Invariant2_ControlPassesALargeTransferAndKeepsItsOrder) {
  Connect();
  const Buffer out = Pattern(32 * kMiB, 1);
  Buffer in(out.size());
  Transfer send, receive;
  to_a->PostRecv(Message(1), Of(in), &receive);
  to_b->PostSend(Message(1), Of(out), &send);
  Poll();
  std::vector<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    expected.push_back(std::string(static_cast<size_t>(i * 37 % (kMaxControlBytes + 1)),
                                   static_cast<char>('a' + i % 26)));
    to_b->SendControl(expected.back());
    if (i % 50 == 0) {
      Poll();
    }
  }
  ASSERT_TRUE(PollUntil([&] {
    return b->events.controls.size() == expected.size() && receive.times > 0 && send.times > 0;
  }));
  EXPECT_TRUE(b->events.controls == expected);
  EXPECT_TRUE(in == out);
}

TEST_P(EndpointContract, Invariant3_NothingCompletesInsidePostAndEverythingOnce) {
  Connect();
  for (const int64_t size : kSizes) {
    const Buffer out = Pattern(size, 1);
    Buffer in(out.size());
    Transfer early_send, send, early_receive, receive;
    to_b->PostSend(Message(1), Of(out), &early_send);
    EXPECT_EQ(early_send.times, 0);
    Settle();
    to_a->PostRecv(Message(1), Of(in), &early_receive);
    EXPECT_EQ(early_receive.times, 0) << "a kept message completed its receive inside PostRecv";
    ASSERT_TRUE(PollBoth(early_send, early_receive));
    to_a->PostRecv(Message(1), Of(in), &receive);
    to_b->PostSend(Message(1), Of(out), &send);
    EXPECT_EQ(send.times + receive.times, 0);
    ASSERT_TRUE(PollBoth(send, receive));
    Settle();
    EXPECT_EQ(early_send.times + early_receive.times + send.times + receive.times, 4) << size;
  }
}

// A completion that posts the next message, like an executor.
struct Relay : Transfer {
  explicit Relay(std::function<void()> next) : after(std::move(next)) {
    done = [](Completion* self, const absl::Status& result, int64_t) {
      auto* relay = static_cast<Relay*>(self);
      relay->status = result;
      ++relay->times;
      relay->after();
    };
  }
  std::function<void()> after;
};

TEST_P(EndpointContract, Invariant3_CompletionsMayPost) {
  Connect();
  Buffer in(64), out = Pattern(64, 1);
  int rounds = 0;
  Transfer answers[2000];
  Relay receive([&] {
    to_a->PostSend(Message(2), Of(std::as_const(out)), &answers[rounds]);
    if (++rounds < 1000) {
      to_a->PostRecv(Message(1), Of(in), &receive);
    }
  });
  to_a->PostRecv(Message(1), Of(in), &receive);
  Transfer sends[1000], replies[1000];
  Buffer reply(64);
  for (int i = 0; i < 1000; ++i) {
    to_b->PostRecv(Message(2), Of(reply), &replies[i]);
    to_b->PostSend(Message(1), Of(std::as_const(out)), &sends[i]);
  }
  ASSERT_TRUE(PollUntil([&] { return replies[999].times == 1; }));
  EXPECT_EQ(rounds, 1000);
  TearDown();
}

void ExpectMismatch(const Transfer& receive, const Buffer& in) {
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kDataLoss) << receive.status;
  EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t byte) { return byte == 0xEE; }));
}

TEST_P(EndpointContract, Invariant6_ADifferentDescriptorFailsTheReceiveNamingBoth) {
  Connect();
  for (const int64_t size : {int64_t{0}, int64_t{24}, 100 * kKiB, 2 * kMiB}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes, receive first: ", receive_first));
      const Buffer out = Pattern(size, 1);
      Buffer in(out.size(), 0xEE);
      Transfer send, receive;
      Envelope sent = Message(7), wanted = Message(7);
      sent.descriptor = {.kind = CallKind::kBroadcast,
                         .dtype = static_cast<uint8_t>(DType::kI32),
                         .root = 2,
                         .count = 6};
      wanted.descriptor = {
          .kind = CallKind::kAllReduce, .dtype = static_cast<uint8_t>(DType::kBF16), .count = 12};
      if (receive_first) {
        to_a->PostRecv(wanted, Of(in), &receive);
        Settle();
      }
      to_b->PostSend(sent, Of(out), &send);
      if (!receive_first) {
        Settle();
        to_a->PostRecv(wanted, Of(in), &receive);
      }
      ASSERT_TRUE(PollBoth(send, receive));
      ExpectMismatch(receive, in);
      EXPECT_THAT(std::string(receive.status.message()), HasSubstr(ToString(sent.descriptor)));
      EXPECT_THAT(std::string(receive.status.message()), HasSubstr(ToString(wanted.descriptor)));
      ExpectGood(kContext);
    }
  }
}

TEST_P(EndpointContract, Invariant6_ADifferentLengthFailsTheReceiveNamingBoth) {
  Connect();
  const std::pair<int64_t, int64_t> cases[] = {{8, 0},
                                               {0, 8},
                                               {24, 32},
                                               {5000, 4999},
                                               {2 * kMiB, 16},
                                               {16, 2 * kMiB},
                                               {2 * kMiB, 3 * kMiB},
                                               {200 * kKiB, 100 * kKiB}};
  for (const auto& [sent, wanted] : cases) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(absl::StrCat(sent, " to ", wanted, ", receive first: ", receive_first));
      const Buffer out = Pattern(sent, 1);
      Buffer in(static_cast<size_t>(wanted), 0xEE);
      Transfer send, receive;
      if (receive_first) {
        to_a->PostRecv(Message(7), Of(in), &receive);
        Settle();
      }
      to_b->PostSend(Message(7), Of(out), &send);
      if (!receive_first) {
        Settle();
        to_a->PostRecv(Message(7), Of(in), &receive);
      }
      ASSERT_TRUE(PollBoth(send, receive));
      ExpectMismatch(receive, in);
      EXPECT_THAT(std::string(receive.status.message()), HasSubstr(absl::StrCat(sent)));
      EXPECT_THAT(std::string(receive.status.message()), HasSubstr(absl::StrCat(wanted)));
      ExpectGood(kContext);
    }
  }
}

TEST_P(EndpointContract, EarlyMessagesAreReportedOnceEach) {
  Connect();
  const Buffer small = Pattern(10, 1), large = Pattern(kMiB, 2);
  Transfer sends[2];
  to_b->PostSend(Message(1), Of(small), &sends[0]);
  to_b->PostSend(Message(2), Of(large), &sends[1]);
  ASSERT_TRUE(PollUntil([&] { return b->events.early.size() == 2; }));
  Settle();
  EXPECT_EQ(b->events.early.size(), 2u);
  EXPECT_EQ(b->events.early[0].tag, Message(1).tag);
  EXPECT_EQ(b->events.early[1].descriptor, Message(2).descriptor);
  TearDown();  // completes the large send
}

TEST_P(EndpointContract, Invariant4_WhatHadArrivedIsDeliveredAfterThePeerHasClosed) {
  Connect();
  const Buffer small = Pattern(10, 1), medium = Pattern(1000, 2);  // eager on every transport
  Transfer sends[2];
  to_b->PostSend(Message(1), Of(small), &sends[0]);
  to_b->PostSend(Message(2), Of(medium), &sends[1]);
  ASSERT_TRUE(PollUntil([&] { return sends[0].times == 1 && sends[1].times == 1; }));
  to_b->Close(absl::AbortedError("has said all"));
  ASSERT_TRUE(PollUntil([&] { return b->events.lost.size() == 1; }));
  Buffer into[2] = {Buffer(small.size(), 0), Buffer(medium.size(), 0)};
  Transfer receives[3];
  to_a->PostRecv(Message(1), Of(into[0]), &receives[0]);
  to_a->PostRecv(Message(2), Of(into[1]), &receives[1]);
  to_a->PostRecv(Message(1), Of(into[0]), &receives[2]);
  ASSERT_TRUE(PollUntil([&] { return receives[2].times == 1; }));
  EXPECT_EQ(receives[0].status, absl::OkStatus());
  EXPECT_EQ(into[0], small);
  EXPECT_EQ(receives[1].status, absl::OkStatus());
  EXPECT_EQ(into[1], medium);
  EXPECT_FALSE(receives[2].status.ok()) << "nothing more had arrived";
}

// TrySend and TryRecv transfer a message at once or not at all.
using Next = Endpoint::Next;
using Sent = Endpoint::Sent;
bool HasShortWay(const std::string& transport) {
  return transport == "shm" || absl::StartsWith(transport, "tcp");
}

TEST_P(EndpointContract, AtOnceMovesOnlyWhatIsMeantAndFits) {
  Connect();
  const Buffer out = Pattern(100, 1), large = Pattern(kMiB, 2);
  Buffer in(out.size());
  if (!HasShortWay(GetParam())) {
    SendRequest request;
    EXPECT_EQ(to_b->TrySend(Message(1), Of(out), &request), Sent::kNo);
    EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kOther);
    return;
  }
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kNothing);
  if (GetParam() != "shm") {  // shm sends an RTS
    SendRequest request;
    EXPECT_EQ(to_b->TrySend(Message(1), Of(large), &request), Sent::kNo)
        << "more than goes at once";
  }
  ASSERT_TRUE(Copies(*to_b, Message(1), Of(out)));
  ASSERT_TRUE(Copies(*to_b, Message(2), {}));
  Buffer shorter(out.size() - 1);
  EXPECT_EQ(Take(Message(2), {}), Next::kOther) << "another tag comes first";
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(shorter)), Next::kOther) << "another length";
  EXPECT_EQ(to_a->TryRecv(Message(1, kContext, 2), Of(in)), Next::kOther) << "another descriptor";
  EXPECT_EQ(in, Buffer(in.size(), 0));
  EXPECT_EQ(Take(Message(1), Of(in)), Next::kThis);
  EXPECT_EQ(in, out);
  EXPECT_EQ(Take(Message(2), {}), Next::kThis);
  EXPECT_EQ(to_a->TryRecv(Message(2), {}), Next::kNothing);
  EXPECT_TRUE(b->events.early.empty());
  ExpectGood();
}

TEST_P(EndpointContract, AtOnceAndPostedMixInOrder) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  const Buffer out = Pattern(100, 1), other = Pattern(100, 2);
  Buffer in(out.size(), 0);
  // TrySend sends the messages. Receives that were posted before or after the send take them.
  Transfer first, second, sent;
  to_a->PostRecv(Message(1), Of(in), &first);
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kOther) << "a receive is posted";
  ASSERT_TRUE(Copies(*to_b, Message(1), Of(out)));
  ASSERT_TRUE(PollUntil([&] { return first.times == 1; }));
  EXPECT_EQ(in, out);
  ASSERT_TRUE(Copies(*to_b, Message(1), Of(other)));
  Settle();
  EXPECT_EQ(b->events.early.size(), 1u);
  EXPECT_EQ(to_a->TryRecv(Message(1, kContext, 2), Of(in)), Next::kOther) << "kept, but another";
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kThis) << "kept";
  EXPECT_EQ(in, other);
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kNothing);
  ASSERT_TRUE(Copies(*to_b, Message(1), Of(out)));
  Settle();
  to_a->PostRecv(Message(1), Of(in), &second);
  ASSERT_TRUE(PollUntil([&] { return second.times == 1; }));
  EXPECT_EQ(in, out);
  // Posted, received by TryRecv.
  to_b->PostSend(Message(3), Of(out), &sent);
  EXPECT_EQ(Take(Message(3), Of(in)), Next::kThis);
  EXPECT_EQ(in, out);
  ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
  ExpectGood();
}

TEST_P(EndpointContract, AtOnceWhatIsReadStaysUntilTheNextCall) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  Buffer in(3000, 0);
  const auto read = [&](uint32_t tag) {
    const std::byte* data = nullptr;
    const Deadline deadline = Deadline::After(20 * kSecond);
    Next next = Next::kNothing;
    while (IsToCome(next) && !deadline.Passed(Clock::Real().Now())) {
      next = to_a->TryRecv(Message(tag), Of(in), &data);
    }
    EXPECT_EQ(next, Next::kThis);
    return reinterpret_cast<const uint8_t*>(next == Next::kThis ? data : Of(in).data());
  };
  const auto expect = [&](const uint8_t* data, uint32_t seed) {
    EXPECT_EQ(Buffer(data, data + in.size()), Pattern(3000, seed)) << seed;
  };
  for (uint32_t i = 0; i < 500; ++i) {  // rings wrap around several times
    const Buffer first = Pattern(3000, i), second = Pattern(3000, i + 1000);
    ASSERT_TRUE(Copies(*to_b, Message(1), Of(first)));
    const uint8_t* const at = read(1);
    ASSERT_TRUE(Copies(*to_b, Message(2), Of(second))) << "one more, while the first is looked at";
    a->transport->Poll();
    expect(at, i);
    // Any next operation ends the loan: a send, a read, a turn of Poll.
    if (i % 3 == 0) {
      ASSERT_TRUE(Copies(*to_a, Message(3), Of(second)));
    } else if (i % 3 == 1) {
      b->transport->Poll();
    }
    if (i % 3 == 1) {  // the poll has read the other message too
      EXPECT_EQ(Take(Message(2), Of(in)), Next::kThis);
      EXPECT_EQ(in, second);
    } else {
      expect(read(2), i + 1000);
    }
    if (i % 3 == 0) {
      Buffer answer(3000);
      Transfer received;
      to_b->PostRecv(Message(3), Of(answer), &received);
      ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
      EXPECT_EQ(answer, second);
    }
  }
  ExpectGood();
}

TEST_P(EndpointContract, AtOnceStopsAtTheCreditAndGoesOn) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  const Buffer out = Pattern(4000, 1);
  Buffer in(out.size(), 0);
  for (int round = 0; round < 20; ++round) {
    const Many many = SendMany(Of(out), 10'000);
    ASSERT_GT(many.sent, 10) << "in round " << round;
    ASSERT_LT(many.sent, 10'000) << "nothing bounds what the receiver must keep";
    for (int i = 0; i < many.sent; ++i) {
      ASSERT_EQ(Take(Message(1), Of(in)), Next::kThis) << i;
      ASSERT_EQ(in, out);
    }
    ASSERT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kNothing);
    ExpectTaken(many);
    Settle();  // tcp returns credit by a frame
  }
  ExpectGood();
}

TEST_P(EndpointContract, AtOnceRtsIsTakenFromWhereItLies) {
  Connect();
  const Buffer out = Pattern(100'000, 1), other = Pattern(70'000, 2);
  Buffer in(out.size(), 0), back(other.size(), 0);
  if (GetParam() != "shm") {
    GTEST_SKIP() << GetParam() << " sends no RTS at once";
  }
  if (to_a->Explain().find("is read slowly") != std::string::npos) {
    GTEST_SKIP() << "on this machine Poll gets long messages through the ring";
  }
  for (int round = 0; round < 3000; ++round) {  // rings wrap around
    // Both send at once, and neither runs its loop.
    SendRequest there, here;
    ASSERT_EQ(to_b->TrySend(Message(1), Of(out), &there), Sent::kRtsSent);
    ASSERT_EQ(to_a->TrySend(Message(2), Of(other), &here), Sent::kRtsSent);
    EXPECT_EQ(to_b->TryTaken(there), Next::kOther) << "what comes first is a message";
    ASSERT_EQ(Take(Message(1), Of(in)), Next::kThis);
    EXPECT_EQ(to_a->TryTaken(here), Next::kNothing);
    Next next = Next::kNothing;
    while (next == Next::kNothing) {
      next = to_b->TryRecv(Message(2), Of(back));
    }
    ASSERT_EQ(next, Next::kThis);
    EXPECT_EQ(UntilTaken(*to_a, here), Next::kThis);
    EXPECT_EQ(UntilTaken(*to_b, there), Next::kThis);
  }
  EXPECT_EQ(in, out);
  EXPECT_EQ(back, other);
  ExpectGood();
}

TEST_P(EndpointContract, AtOnceRtsIsAwaitedLikeWhatIsPosted) {
  Connect();
  if (GetParam() != "shm") {
    GTEST_SKIP() << GetParam() << " sends no RTS at once";
  }
  const Buffer out = Pattern(100'000, 1);
  Buffer in(out.size(), 0);
  const auto send_rts = [&](uint32_t tag) {
    SendRequest request;
    EXPECT_EQ(to_b->TrySend(Message(tag), Of(out), &request), Sent::kRtsSent);
    return request;
  };
  // A posted receive takes the message. The sender awaits it before or after that.
  for (const bool before : {true, false}) {
    std::fill(in.begin(), in.end(), 0);
    const SendRequest request = send_rts(1);
    Transfer received, back;
    if (before) {
      to_b->Await(request, &back);
    }
    to_a->PostRecv(Message(1), Of(in), &received);
    ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
    if (!before) {
      Settle();
      to_b->Await(request, &back);
    }
    ASSERT_TRUE(PollUntil([&] { return back.times == 1; }));
    EXPECT_EQ(back.status, absl::OkStatus());
    EXPECT_EQ(in, out);
  }
  // The message is not taken by a shorter receive, by a receive of another call, or by one of a tag
  // that is expected elsewhere.
  const SendRequest request = send_rts(3);
  Buffer shorter(out.size() - 1);
  EXPECT_EQ(Take(Message(3), Of(shorter)), Next::kOther);
  EXPECT_EQ(to_a->TryRecv(Message(3, kContext, 2), Of(in)), Next::kOther);
  EXPECT_EQ(to_a->TryRecv(Message(4), Of(in)), Next::kOther);
  // After a revocation the buffer is the sender's again at once.
  Transfer revoked;
  to_b->Await(request, &revoked);
  to_b->Revoke(kContext, kContext, absl::AbortedError("enough"));
  ASSERT_TRUE(PollUntil([&] { return revoked.times == 1; }));
  EXPECT_FALSE(revoked.status.ok());
  SendRequest none;
  EXPECT_EQ(to_b->TrySend(Message(5), Of(out), &none), Sent::kNo) << "of a context that is over";
  EXPECT_NE(to_a->TryRecv(Message(3), Of(in)), Next::kThis);
  // When the connection is closed, the buffer is the sender's again, whether or not a peer has
  // asked for it.
  to_b->Close(absl::AbortedError("done"));
  EXPECT_EQ(to_b->TryTaken(SendRequest{request.number, request.bytes}), Next::kOther);
  EXPECT_EQ(to_b->TrySend(Message(6), Of(out), &none), Sent::kNo);
}

// A caller may compute for long after its last send. A message that TrySend has accepted arrives
// without another turn of Poll here.
TEST_P(EndpointContract, AtOnceNeedsNoPollAfterwards) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  // What counts as small over shm depends on the machine. 4 KiB is small on every machine.
  const int64_t most = GetParam() == "shm" ? 4 * kKiB : 32 * kKiB;
  for (const int64_t bytes : {most, int64_t{8}, most * 5 / 8 + 1, int64_t{4000}, most}) {
    const Buffer out = Pattern(bytes, static_cast<uint32_t>(bytes));
    const Many many = SendMany(Of(out), 100'000);
    ASSERT_GT(many.sent, 2) << bytes;
    for (int i = 0; i < many.sent; ++i) {
      Buffer in(out.size(), 0);
      const Deadline deadline = Deadline::After(5 * kSecond);
      Next next = to_a->TryRecv(Message(1), Of(in));
      while (next != Next::kThis && !deadline.Passed(Clock::Real().Now())) {
        b->transport->Poll();
        next = to_a->TryRecv(Message(1), Of(in));
      }
      ASSERT_EQ(next, Next::kThis) << "message " << i << " of " << many.sent << ", " << bytes;
      ASSERT_EQ(in, out);
    }
    ExpectTaken(many);
    Settle();  // tcp returns credit by a frame
  }
  ExpectGood();
}

// Once a send is complete, its sender may not poll for long. (UCX completes sends of which it keeps
// a copy.)
TEST_P(EndpointContract, CompleteSendsNeedNoPollOfTheSender) {
  if (absl::StrContains(GetParam(), "ucx")) {
    GTEST_SKIP();
  }
  Connect();
  constexpr size_t kMessages = 300;  // more than the sockets hold
  const Buffer out = Pattern(100 * kKiB, 1);
  std::deque<Buffer> ins(kMessages, Buffer(out.size()));
  std::deque<Transfer> sends(kMessages), receives(kMessages);
  for (size_t i = 0; i < kMessages; ++i) {
    to_a->PostRecv(Message(1), Of(ins[i]), &receives[i]);
    to_b->PostSend(Message(1), Of(out), &sends[i]);
  }
  const auto complete = [](const std::deque<Transfer>& transfers) {
    return std::count_if(transfers.begin(), transfers.end(),
                         [](const Transfer& transfer) { return transfer.times > 0; });
  };
  // The receiver stops in the middle, and the sender goes on until the sockets are full.
  ASSERT_TRUE(PollUntil([&] { return complete(receives) > 0; }));
  for (int idle = 0; idle < 1000;) {
    idle = a->transport->Poll() > 0 ? 0 : idle + 1;
  }
  const auto sent = complete(sends);
  const Deadline deadline = Deadline::After(20 * kSecond);
  while (complete(receives) < sent && !deadline.Passed(Clock::Real().Now())) {
    b->transport->Poll();
  }
  ASSERT_GE(complete(receives), sent);
  ASSERT_TRUE(PollUntil(
      [&] { return complete(sends) + complete(receives) == 2 * static_cast<int64_t>(kMessages); }));
  EXPECT_TRUE(std::all_of(ins.begin(), ins.end(), [&](const Buffer& in) { return in == out; }));
}

// TrySend and TryRecv run no completion and no event, whatever has arrived. A small call on the
// inline path is not a turn of Poll.
TEST_P(EndpointContract, AtOnceCallsNobodyAlsoWhenThePeerHasGoneBeforeItReadAll) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  const Buffer out = Pattern(32 * kKiB, 1), large = Pattern(kMiB, 2);
  Buffer in(8, 0);
  std::deque<Transfer> sends;
  while (Copies(*to_a, Message(1), Of(out))) {
  }
  for (int i = 0; i < 100; ++i) {
    to_a->PostSend(Message(2), Of(large), &sends.emplace_back());
  }
  to_b->SendControl("the last word");
  to_b->Close(absl::AbortedError("enough"));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_NE(to_a->TryRecv(Message(1), Of(in)), Next::kThis);
  }
  EXPECT_TRUE(b->events.controls.empty());
  EXPECT_TRUE(b->events.lost.empty());
  ASSERT_TRUE(PollUntil([&] { return b->events.lost.size() == 1; }));
  EXPECT_THAT(b->events.controls, testing::ElementsAre("the last word"));
  EXPECT_TRUE(std::all_of(sends.begin(), sends.end(),
                          [](const Transfer& t) { return t.times == 1 && !t.status.ok(); }));
}

TEST_P(EndpointContract, AtOnceSaysNothingOfAPeerThatHasClosedButPollDoes) {
  Connect();
  if (!HasShortWay(GetParam())) {
    GTEST_SKIP() << GetParam() << " sends nothing at once";
  }
  to_b->Close(absl::AbortedError("enough"));
  Buffer in(8, 0);
  EXPECT_NE(to_a->TryRecv(Message(1), Of(in)), Next::kThis);
  ASSERT_TRUE(PollUntil([&] { return b->events.lost.size() == 1; }));
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Next::kOther);
  SendRequest request;
  EXPECT_EQ(to_a->TrySend(Message(1), Of(in), &request), Sent::kNo);
  EXPECT_EQ(to_b->TrySend(Message(1), Of(in), &request), Sent::kNo);
}

TEST_P(EndpointContract, MessagesForAContextThatIsNotAcceptedAreDropped) {
  Connect();
  b->events.refused.insert(kContext);
  const Buffer small = Pattern(10, 1), medium = Pattern(100 * kKiB, 2), large = Pattern(kMiB, 2);
  std::deque<Transfer> sends;
  // More than any credit: dropped messages must return their credit.
  for (int i = 0; i < 200; ++i) {
    to_b->PostSend(Message(1), Of(small), &sends.emplace_back());
    to_b->PostSend(Message(1), Of(medium), &sends.emplace_back());
    to_b->PostSend(Message(2), Of(large), &sends.emplace_back());
  }
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(sends.begin(), sends.end(), [](const Transfer& t) { return t.times == 1; });
  }));
  EXPECT_TRUE(b->events.early.empty());
  ExpectGood(kOtherContext);
}

TEST_P(EndpointContract, SixNodesAllToAll) {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::vector<std::unique_ptr<Endpoint>>> paths(6);
  for (uint8_t i = 0; i < 6; ++i) {
    nodes.push_back(MakeNode(GetParam(), static_cast<uint8_t>(i + 1)));
  }
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 6; ++j) {
      paths[i].push_back(
          i == j ? nullptr
                 : nodes[i]
                       ->transport->Connect(nodes[j]->config.self, nodes[j]->transport->address())
                       .value());
    }
  }
  std::deque<Transfer> transfers;
  std::deque<Buffer> buffers;
  std::vector<std::pair<Buffer*, Buffer*>> pairs;
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 6; ++j) {
      if (i == j) {
        continue;
      }
      Buffer& out = buffers.emplace_back(Pattern(100 * kKiB, static_cast<uint32_t>(i * 10 + j)));
      Buffer& in = buffers.emplace_back(out.size());
      pairs.emplace_back(&out, &in);
      paths[i][j]->PostSend(Message(1), Of(std::as_const(out)), &transfers.emplace_back());
      paths[j][i]->PostRecv(Message(1), Of(in), &transfers.emplace_back());
    }
  }
  const Deadline deadline = Deadline::After(20 * kSecond);
  const auto all = [&] {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const Transfer& t) { return t.times == 1; });
  };
  while (!all() && !deadline.Passed(Clock::Real().Now())) {
    for (const auto& node : nodes) {
      node->transport->Poll();
    }
  }
  ASSERT_TRUE(all());
  for (const auto& [out, in] : pairs) {
    EXPECT_TRUE(*out == *in);
  }
  for (const auto& row : paths) {
    for (const auto& path : row) {
      if (path != nullptr) {
        path->Close(absl::AbortedError("end"));
      }
    }
  }
  paths.clear();
}

}  // namespace
}  // namespace entrain
