// The contract when something ends: revocation (7), closing and loss (3, 4), connecting that fails.
#include <algorithm>
#include <deque>
#include <random>

#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

absl::Status Why() {
  return absl::AbortedError("revoked by the test");
}

bool WasAborted(const Transfer& transfer) {
  return transfer.times == 1 && transfer.status.code() == absl::StatusCode::kAborted;
}

// Memory that is given back to the system as soon as it is returned. A sanitizer, or the kernel,
// finds any later access.
class Lease {
 public:
  Lease(int64_t bytes, uint8_t fill)
      : bytes_(static_cast<size_t>(bytes)), data_(new std::byte[bytes_]) {
    std::memset(data_.get(), fill, bytes_);
  }
  Bytes bytes() { return {data_.get(), bytes_}; }
  // Overwrites and frees the memory. A receiver that accepts later bytes of the peer sees the
  // overwritten ones.
  void Return() {
    std::memset(data_.get(), 0xDD, bytes_);
    data_.reset();
  }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

TEST_P(EndpointContract, Invariant7_RevokeOfAReceiveThatWaits) {
  Connect();
  Transfer receive;
  Lease lease(kMiB, 0);
  to_a->PostRecv(Message(1), lease.bytes(), &receive);
  to_a->Revoke(kContext, kContext, Why());
  EXPECT_EQ(receive.times, 0) << "completed inside Revoke";
  lease.Return();
  ASSERT_TRUE(PollUntil([&] { return receive.times > 0; }));
  EXPECT_TRUE(WasAborted(receive)) << receive.status;
  ExpectGood(kOtherContext);
}

TEST_P(EndpointContract, Invariant7_RevokeForgetsWhatWasKeptEarly) {
  Connect();
  std::deque<Transfer> sends;
  const Buffer small = Pattern(100, 1), medium = Pattern(100 * kKiB, 2),
               large = Pattern(2 * kMiB, 3);
  for (int i = 0; i < 10; ++i) {
    for (const Buffer* buffer : {&small, &medium, &large}) {
      to_b->PostSend(Message(1), Of(*buffer), &sends.emplace_back());
    }
  }
  Settle();
  to_a->Revoke(kContext, kContext, Why());
  b->events.refused.insert(kContext);
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(sends.begin(), sends.end(), [](const Transfer& t) { return t.times == 1; });
  })) << "messages sent by RTS that were refused must complete at their sender";
  ExpectGood(kOtherContext);
}

TEST_P(EndpointContract, Invariant7_RevokeOfSendsInEveryStage) {
  for (int polls = 0; polls < 12; ++polls) {
    SCOPED_TRACE(absl::StrCat(polls, " polls before the sender revokes"));
    Connect();
    const Buffer expected(8 * kMiB, 0x11);
    auto lease = std::make_unique<Lease>(8 * kMiB, 0x11);
    Buffer in(expected.size(), 0);
    Transfer send, receive;
    to_a->PostRecv(Message(1), Of(in), &receive);
    to_b->PostSend(Message(1), lease->bytes(), &send);
    for (int i = 0; i < polls; ++i) {
      (i % 2 == 0 ? a : b)->transport->Poll();
    }
    const bool was_sent = send.times > 0;
    to_b->Revoke(kContext, kContext, Why());
    if (!was_sent) {
      EXPECT_EQ(send.times, 0) << "completed inside Revoke";
    }
    lease->Return();
    ASSERT_TRUE(PollUntil([&] { return send.times > 0; }));
    Settle();
    to_a->Revoke(kContext, kContext, Why());
    ASSERT_TRUE(PollUntil([&] { return receive.times > 0; }));
    EXPECT_EQ(send.times, 1);
    EXPECT_EQ(receive.times, 1);
    if (receive.status.ok()) {
      EXPECT_TRUE(in == expected) << "success, but not with what was sent";
    }
    EXPECT_TRUE(was_sent || WasAborted(send)) << send.status;
    ExpectGood(kOtherContext);
    TearDown();
  }
}

TEST_P(EndpointContract, Invariant7_RevokeOfAnyContext) {
  Connect();
  const Buffer large = Pattern(2 * kMiB, 1);
  for (const int number : {1, 30719, 30720, 30721, 65535}) {
    SCOPED_TRACE(number);
    const auto context = static_cast<Context>(number);
    ExpectGood(context);
    Transfer send, receive;
    Buffer in(large.size(), 0);
    to_b->PostSend(Message(1, context), Of(large), &send);
    Settle();
    to_b->Revoke(context, context, Why());
    ASSERT_TRUE(PollUntil([&] { return send.times > 0; }));
    // On a long path all bytes may have gone to the memory that the receiver has lent.
    const bool went_ahead = absl::EndsWith(GetParam(), "_long") && send.status.ok();
    EXPECT_TRUE(went_ahead || WasAborted(send)) << send.status;
    to_a->PostRecv(Message(1, context), Of(in), &receive);
    Settle();
    EXPECT_TRUE(went_ahead || receive.times == 0 || !receive.status.ok()) << receive.status;
    to_a->Revoke(context, context, Why());
    ASSERT_TRUE(PollUntil([&] { return receive.times > 0; }));
    ExpectGood(static_cast<Context>(number - 1));
  }
  EXPECT_TRUE(a->events.lost.empty());
  EXPECT_TRUE(b->events.lost.empty());
}

TEST_P(EndpointContract, Invariant7_RevokeOfReceivesInEveryStage) {
  for (int polls = 0; polls < 12; ++polls) {
    SCOPED_TRACE(absl::StrCat(polls, " polls before the receiver revokes"));
    Connect();
    const Buffer out(8 * kMiB, 0x11);
    auto lease = std::make_unique<Lease>(8 * kMiB, 0);
    Transfer send, receive;
    to_a->PostRecv(Message(1), lease->bytes(), &receive);
    to_b->PostSend(Message(1), Of(out), &send);
    for (int i = 0; i < polls; ++i) {
      (i % 2 == 0 ? a : b)->transport->Poll();
    }
    const bool was_received = receive.times > 0;
    to_a->Revoke(kContext, kContext, Why());
    lease->Return();
    b->events.refused.insert(kContext);
    ASSERT_TRUE(PollUntil([&] { return receive.times > 0 && send.times > 0; }));
    EXPECT_TRUE(was_received || WasAborted(receive)) << receive.status;
    Settle();
    EXPECT_EQ(send.times + receive.times, 2);
    ExpectGood(kOtherContext);
    TearDown();
  }
}

TEST_P(EndpointContract, Invariant7_OtherContextsInFlightGoOn) {
  Connect();
  for (int polls : {0, 1, 3, 6}) {
    const Buffer out = Pattern(16 * kMiB, 1), doomed = Pattern(16 * kMiB, 2);
    Buffer in(out.size()), never(doomed.size());
    Transfer send, receive, doomed_send, doomed_receive;
    to_a->PostRecv(Message(1, kContext), Of(never), &doomed_receive);
    to_b->PostSend(Message(1, kContext), Of(doomed), &doomed_send);
    to_a->PostRecv(Message(1, kOtherContext), Of(in), &receive);
    to_b->PostSend(Message(1, kOtherContext), Of(out), &send);
    for (int i = 0; i < polls; ++i) {
      Poll();
    }
    to_b->Revoke(kContext, kContext, Why());
    to_a->Revoke(kContext, kContext, Why());
    ASSERT_TRUE(PollBoth(send, receive));
    EXPECT_TRUE(receive.status.ok()) << receive.status;
    EXPECT_TRUE(in == out);
    ASSERT_TRUE(PollBoth(doomed_send, doomed_receive));
  }
}

TEST_P(EndpointContract, Invariant7_ContextsOfTheTwoSidesMayDiffer) {
  Connect();
  // a knows the communicator as 10, b knows it as 20. A message carries its receiver's number.
  Transfer a_send, a_receive, b_receive;
  Lease out(2 * kMiB, 1), in_a(8, 0), in_b(8, 0);
  to_b->PostSend(Message(1, 20), out.bytes(), &a_send);
  to_b->PostRecv(Message(1, 10), in_a.bytes(), &a_receive);
  Transfer unrelated;
  Lease kept(8, 0);
  // The receive is of another communicator, which has number 20 here.
  to_b->PostRecv(Message(1, 20), kept.bytes(), &unrelated);
  Settle();
  to_b->Revoke(/*mine=*/10, /*theirs=*/20, Why());
  out.Return();
  in_a.Return();
  ASSERT_TRUE(PollBoth(a_send, a_receive));
  // On a long path all bytes may have gone to the memory that the receiver has lent.
  EXPECT_TRUE(WasAborted(a_send) || (absl::EndsWith(GetParam(), "_long") && a_send.status.ok()));
  EXPECT_TRUE(WasAborted(a_receive));
  Settle();
  EXPECT_EQ(unrelated.times, 0);
  ExpectGood(kContext);
  TearDown();  // completes it
}

TEST_P(EndpointContract, Invariant7_RevokingThousandsOfTimesAtRandom) {
  Connect();
  std::mt19937 random(7);
  std::deque<Transfer> transfers;
  std::deque<Buffer> buffers;
  for (Context context = 100; context < 160; ++context) {
    for (uint32_t i = 0; i < 10; ++i) {
      const int64_t size = int64_t{1} << (random() % 20);
      Buffer& out = buffers.emplace_back(Pattern(size, i));
      Buffer& in = buffers.emplace_back(out.size());
      const bool both = random() % 4 != 0;
      if (both || random() % 2 == 0) {
        to_b->PostSend(Message(i, context), Of(std::as_const(out)), &transfers.emplace_back());
      }
      if (both || random() % 2 == 0) {
        to_a->PostRecv(Message(i, context), Of(in), &transfers.emplace_back());
      }
      if (random() % 3 == 0) {
        Poll();
      }
    }
    const bool a_first = random() % 2 == 0;
    (a_first ? to_b : to_a)->Revoke(context, context, Why());
    if (random() % 2 == 0) {
      Poll();
    }
    (a_first ? to_a : to_b)->Revoke(context, context, Why());
    a->events.refused.insert(context);
    b->events.refused.insert(context);
    ASSERT_TRUE(PollUntil([&] {
      return std::all_of(transfers.begin(), transfers.end(),
                         [](const Transfer& t) { return t.times == 1; });
    })) << "context "
        << context;
  }
  ExpectGood(kOtherContext);
}

TEST_P(EndpointContract, Invariant4_CloseIsSeenOnceByTheOtherSideWithTheReason) {
  Connect();
  Transfer receive, send;
  Lease in(kMiB, 0), out(kMiB, 1);
  to_a->PostRecv(Message(1), in.bytes(), &receive);
  to_a->PostSend(Message(2), out.bytes(), &send);
  to_b->Close(absl::AbortedError("a is going home"));
  to_b->Close(absl::AbortedError("again"));
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  ASSERT_TRUE(PollBoth(receive, send));
  in.Return();
  out.Return();
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable) << receive.status;
  EXPECT_EQ(send.status.code(), absl::StatusCode::kUnavailable) << send.status;
  EXPECT_TRUE(a->events.lost.empty()) << "no OnLost follows Close";
  Transfer late_send, late_receive;
  Buffer late(8);
  to_a->PostSend(Message(1), Of(std::as_const(late)), &late_send);
  to_a->PostRecv(Message(1), Of(late), &late_receive);
  to_a->SendControl("dropped");
  to_a->Revoke(kContext, kContext, Why());
  EXPECT_EQ(late_send.times + late_receive.times, 0);
  ASSERT_TRUE(PollBoth(late_send, late_receive));
  EXPECT_EQ(late_send.status.code(), absl::StatusCode::kUnavailable);
  to_a->Close(absl::AbortedError("b too"));
  Settle();
  EXPECT_EQ(b->events.lost.size(), 1u);
  EXPECT_EQ(receive.times + send.times + late_send.times + late_receive.times, 4);
}

TEST_P(EndpointContract, Invariant3_CloseInEveryStageCompletesEverythingOnce) {
  for (int polls = 0; polls < 14; ++polls) {
    SCOPED_TRACE(absl::StrCat(polls, " polls before closing"));
    Connect(/*wait=*/polls >= 7);
    Transfer transfers[8];
    std::deque<Lease> leases;
    for (int i = 0; i < 4; ++i) {
      leases.emplace_back(i % 2 == 0 ? 8 * kMiB : 64, 1);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      to_b->PostSend(Message(i), leases[i].bytes(), &transfers[i]);
      to_a->PostRecv(Message(i), leases[2 + i].bytes(), &transfers[2 + i]);
    }
    to_b->PostRecv(Message(8), leases[1].bytes(), &transfers[4]);
    to_b->PostSend(Message(9), leases[1].bytes(), &transfers[5]);
    to_a->PostSend(Message(9), leases[3].bytes(), &transfers[6]);
    to_a->PostRecv(Message(8), leases[3].bytes(), &transfers[7]);
    for (int i = 0; i < polls % 7 * 2; ++i) {
      (i % 2 == 0 ? a : b)->transport->Poll();
    }
    std::vector<int> before;
    for (const Transfer& transfer : transfers) {
      before.push_back(transfer.times);
    }
    to_b->Close(absl::AbortedError("closing"));
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(transfers[i].times, before[static_cast<size_t>(i)]) << "completed inside Close";
    }
    leases[0].Return();  // only a's: b has not closed
    to_b.reset();        // completions outlive their endpoint
    ASSERT_TRUE(PollUntil([&] {
      return std::all_of(std::begin(transfers), std::end(transfers),
                         [](const Transfer& t) { return t.times == 1; });
    }));
    Settle();
    EXPECT_TRUE(std::all_of(std::begin(transfers), std::end(transfers),
                            [](const Transfer& t) { return t.times == 1; }));
    EXPECT_EQ(b->events.lost.size(), 1u);
    TearDown();
  }
}

TEST_P(EndpointContract, ControlSentBeforeCloseArrives) {
  Connect();
  to_b->SendControl("the reason");
  to_b->Close(absl::AbortedError("closing"));
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  EXPECT_THAT(b->events.controls, testing::ElementsAre("the reason"));
}

TEST_P(EndpointContract, CloseAndRevokeMayComeFromAnEvent) {
  Connect();
  Transfer receives[2];
  Buffer in(8);
  to_a->PostRecv(Message(1), Of(in), &receives[0]);
  to_a->PostRecv(Message(1, kOtherContext), Of(in), &receives[1]);
  b->events.on_control = [](Endpoint& from) {
    from.Revoke(kContext, kContext, Why());
    from.Close(absl::AbortedError("from an event"));
  };
  const Buffer out = Pattern(100 * kKiB, 1);
  std::deque<Transfer> sends;
  to_b->SendControl("close");
  for (int i = 0; i < 20; ++i) {  // more follows in the same read
    to_b->PostSend(Message(2), Of(out), &sends.emplace_back());
  }
  ASSERT_TRUE(PollUntil([&] { return !a->events.lost.empty(); }));
  ASSERT_TRUE(PollBoth(receives[0], receives[1]));
  EXPECT_THAT(std::string(a->events.lost[0].message()), HasSubstr("close"));
  EXPECT_TRUE(b->events.lost.empty());
}

TEST_P(EndpointContract, APeerThatNeverConnectsIsLostInTime) {
  a = MakeNode(GetParam(), 1);
  b = MakeNode(GetParam(), 2);
  FakeClock clock;
  Node patient;
  patient.config = a->config;
  patient.config.self.fill(9);  // larger id: waits for a connection
  patient.config.clock = &clock;
  MakeTransport(GetParam(), patient);
  auto path = patient.transport->Connect(b->config.self, b->transport->address());
  ASSERT_TRUE(path.ok());
  Transfer receive;
  Buffer in(8);
  (*path)->PostRecv(Message(1), Of(in), &receive);
  for (int i = 0; i < 100; ++i) {
    patient.transport->Poll();
  }
  EXPECT_EQ(receive.times, 0);
  clock.Advance(61 * kSecond);
  for (int i = 0; i < 100; ++i) {
    patient.transport->Poll();
  }
  EXPECT_EQ(receive.times, 1);
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable) << receive.status;
  EXPECT_EQ(patient.events.lost.size(), 1u);
  (*path)->Close(Why());
}

}  // namespace
}  // namespace entrain
