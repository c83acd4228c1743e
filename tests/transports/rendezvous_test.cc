// The two halves of the rendezvous protocol, connected by two queues of packets in this test: in
// random order, with random sizes, and with communicators that either side revokes.
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tests/support/transfer.h"
#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"

namespace entrain {
namespace {

constexpr int64_t kFrame = 64 << 10, kSmall = 32 << 10, kLent = 3 << 20;

struct Packet {
  PacketHeader header;
  std::string payload;
};

struct Message {
  Message(Tag the_tag, size_t bytes, uint32_t seed)
      : tag(the_tag), sent(bytes, 0), got(bytes, '-') {
    std::mt19937 random(seed);
    for (char& c : sent) {
      c = static_cast<char>(random());
    }
  }
  Envelope envelope() const {
    return {tag, {.kind = CallKind::kSend, .count = static_cast<int64_t>(sent.size())}};
  }
  Tag tag;
  std::string sent, got;
  bool posted_send = false, posted_receive = false;
  Transfer send, receive;
};

// One direction of a path. The sender's steps are those of TcpSender, without frames that are half
// written.
class OneWay : public Endpoint, public Events, public Answers {
 public:
  explicit OneWay(bool lends) {
    if (lends) {
      receiver.Lend(kLent);
      to_sender.push_back({{.type = PacketType::kLend, .message = kLent}, ""});
    }
  }

  // Makes at most one packet.
  void Send() {
    if (Outgoing* const refused = sender.TakeRefused()) {
      Withdraw(*refused);
      sender.Complete(refused);
      return;
    }
    Outgoing* const send = sender.Next();
    if (send == nullptr) {
      return;
    }
    PacketHeader header;
    header.tag = send->envelope.tag.bits();
    header.descriptor = send->envelope.descriptor;
    header.bytes = send->bytes;
    if (send->state == Outgoing::State::kWaiting) {
      sender.Dequeue(send);
      if (send->bytes <= kSmall && sender.TakeCredit(send->bytes)) {
        header.type = PacketType::kEager;
        send->state = Outgoing::State::kGivenAway;
        Give(header, send, send->data);
      } else {
        header.type = PacketType::kRts;
        header.message = send->message;
        send->state = Outgoing::State::kSendingRts;
        to_receiver.push_back({header, ""});
        sender.RtsSent(send);
      }
      return;
    }
    const bool ahead = send->state == Outgoing::State::kAhead;
    header = {.type = ahead ? PacketType::kAhead : PacketType::kData, .message = send->message};
    header.bytes = std::min(send->bytes - send->given, kFrame);
    if (ahead) {
      header.bytes = std::min(header.bytes, sender.Allowance());
      ASSERT_TRUE(sender.TakeCredit(header.bytes));
    }
    const std::byte* const from = send->data + send->given;
    send->given += header.bytes;
    if (send->given == send->bytes) {
      sender.Dequeue(send);
    }
    Give(header, send, from);
  }
  void Receive() {
    if (to_receiver.empty()) {
      return;
    }
    const Packet packet = std::move(to_receiver.front());
    to_receiver.pop_front();
    const PacketHeader& header = packet.header;
    const ConstBytes payload(reinterpret_cast<const std::byte*>(packet.payload.data()),
                             packet.payload.size());
    if (header.type == PacketType::kEager) {
      const Envelope envelope{Tag::FromBits(header.tag), header.descriptor};
      ASSERT_EQ(receiver.matching().Deliver(envelope, payload), absl::OkStatus());
    } else if (header.type == PacketType::kData || header.type == PacketType::kAhead) {
      const absl::StatusOr<PayloadPart> part = header.type == PacketType::kData
                                                   ? receiver.OnData(header.message, header.bytes)
                                                   : receiver.OnAhead(header.message, header.bytes);
      ASSERT_EQ(part.status(), absl::OkStatus());
      if (!part->incoming->dropped() && !payload.empty()) {
        std::memcpy(part->incoming->writable(part->at).data(), payload.data(), payload.size());
      }
      receiver.Advance(part->incoming, header.bytes);
    } else {
      ASSERT_EQ(receiver.OnPacket(header, &sender), absl::OkStatus());
    }
    receiver.ReturnCredit();
    EXPECT_LE(receiver.matching().early_bytes(), kEarlyCredit + kLent);
  }
  void Answer() {
    if (to_sender.empty()) {
      return;
    }
    const PacketHeader header = to_sender.front().header;
    to_sender.pop_front();
    ASSERT_EQ(sender.OnCredit(header.credit), absl::OkStatus());
    ASSERT_EQ(receiver.OnPacket(header, &sender), absl::OkStatus());
  }
  void RevokeSends(Context context) {
    sender.ForEach([&](Outgoing* send) {
      if (send->envelope.tag.context() == context) {
        if (send->known()) {
          Withdraw(*send);
        }
        sender.Fail(send, absl::AbortedError("revoked"));
      }
    });
  }

  CompletionList completions;
  RendezvousSender sender{&completions};
  RendezvousReceiver receiver{this, this, &completions, this};
  std::deque<Packet> to_receiver, to_sender;
  std::vector<bool> revoked = std::vector<bool>(8);

 private:
  void Give(const PacketHeader& header, Outgoing* send, const std::byte* from) {
    to_receiver.push_back({header, std::string(reinterpret_cast<const char*>(from),
                                               static_cast<size_t>(header.bytes))});
    sender.Taken(send, header.bytes);
  }
  void Withdraw(const Outgoing& send) {
    to_receiver.push_back(
        {{.type = PacketType::kWithdraw, .tag = send.envelope.tag.bits(), .message = send.message},
         ""});
  }

  // Answers
  void ClearToSend(uint64_t message) override {
    to_sender.push_back({{.type = PacketType::kCts, .message = message}, ""});
  }
  void Refuse(uint64_t message) override {
    to_sender.push_back({{.type = PacketType::kRefuse, .message = message}, ""});
  }
  void ReturnCredit(int64_t bytes) override {
    if (bytes > 0) {
      to_sender.push_back(
          {{.type = PacketType::kCredit, .credit = static_cast<uint32_t>(bytes)}, ""});
    }
  }
  // Events
  bool Accepts(Context context) override { return !revoked[context]; }
  void OnEarly(Endpoint&, const Envelope&) override {}
  void OnControl(Endpoint&, absl::string_view) override {}
  void OnLost(Endpoint&, const absl::Status&) override {}
  // Endpoint
  void PostSend(const Envelope&, ConstBytes, Completion*) override {}
  void PostRecv(const Envelope&, Bytes, Completion*, RecvHint) override {}
  bool HasEarly(Tag) const override { return false; }
  void SendControl(absl::string_view) override {}
  void Revoke(Context, Context, const absl::Status&) override {}
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "none"; }
};

void RunSeed(uint32_t seed, bool lends) {
  SCOPED_TRACE(absl::StrCat("seed ", seed, lends ? ", lends" : ""));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t most) { return static_cast<uint32_t>(random() % most); };
  OneWay path(lends);
  std::vector<std::unique_ptr<Message>> messages;
  const size_t count = 4 + below(24);
  for (size_t i = 0; i < count; ++i) {
    // Few tags, so that several messages have the same one.
    const Tag tag(static_cast<Context>(1 + below(2)), below(4), 0, 0);
    const size_t bytes = below(4) == 0 ? below(1 << 10) : below(1 << 20);
    messages.push_back(std::make_unique<Message>(tag, bytes, random()));
  }
  const bool revokes = below(3) == 0;
  const uint32_t favoured = below(5);  // this action comes more often, so that queues grow
  size_t sent = 0;
  std::vector<size_t> received(count);
  for (size_t i = 0; i < count; ++i) {
    received[i] = i;
  }
  // The receives of a tag are posted in the order of its sends, tags in any order.
  std::stable_sort(received.begin(), received.end(), [&](size_t x, size_t y) {
    return (messages[x]->tag.bits() * 2654435761u ^ seed) <
           (messages[y]->tag.bits() * 2654435761u ^ seed);
  });
  size_t posted = 0;
  const auto act = [&](uint32_t action) {
    switch (action) {
      case 0:
        if (sent < count) {
          Message& message = *messages[sent++];
          if (!path.revoked[message.tag.context()]) {
            message.posted_send = true;
            path.sender.Post(
                message.envelope(),
                {reinterpret_cast<const std::byte*>(message.sent.data()), message.sent.size()},
                &message.send);
          }
        }
        break;
      case 1:
        if (posted < count) {
          Message& message = *messages[received[posted++]];
          if (!path.revoked[message.tag.context()]) {
            message.posted_receive = true;
            path.receiver.Post(
                message.envelope(),
                {reinterpret_cast<std::byte*>(message.got.data()), message.got.size()},
                &message.receive, {});
          }
        }
        break;
      case 2:
        path.Send();
        break;
      case 3:
        path.Receive();
        break;
      default:
        path.Answer();
        break;
    }
    path.completions.Run();
  };
  for (int step = 0; step < 400; ++step) {
    act(below(2) == 0 ? favoured : below(5));
    if (revokes && step == 200) {  // the receiver revokes a context, then the sender hears of it
      path.revoked[1] = true;
      path.receiver.Revoke(1, absl::AbortedError("revoked"));
    }
    if (revokes && step == 260) {
      path.RevokeSends(1);
    }
  }
  for (int step = 0; step < 4000; ++step) {
    act(static_cast<uint32_t>(step) % 5);
  }
  for (size_t i = 0; i < count; ++i) {
    const Message& message = *messages[i];
    const std::string name = absl::StrCat("message ", i, " of ", message.sent.size());
    EXPECT_EQ(message.send.times, message.posted_send ? 1 : 0) << name;
    EXPECT_EQ(message.receive.times, message.posted_receive ? 1 : 0) << name;
    if (!revokes || message.tag.context() != 1) {
      EXPECT_EQ(message.send.status, absl::OkStatus()) << name;
      EXPECT_EQ(message.receive.status, absl::OkStatus()) << name;
      EXPECT_TRUE(message.got == message.sent) << name;
    } else if (message.posted_receive && message.receive.status.ok()) {
      EXPECT_TRUE(message.got == message.sent) << name;
    }
  }
  EXPECT_TRUE(path.sender.empty());
  EXPECT_FALSE(path.sender.awaiting());
  EXPECT_EQ(path.receiver.matching().early_bytes(), 0);
  EXPECT_FALSE(path.receiver.matching().expecting());
  // All credit has come back.
  EXPECT_EQ(path.sender.Allowance(), kEarlyCredit + (lends ? kLent : 0) - MatchQueue::kOverhead);
}

TEST(Rendezvous, EveryMessageArrivesOnceAndAllCreditComesBack) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    RunSeed(seed, /*lends=*/seed % 4 != 0);
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

// Without CTS, as many bytes are sent as were lent, and no more.
TEST(Rendezvous, WithoutAnAnswerAsMuchIsSentAsWasLent) {
  for (const bool lends : {false, true}) {
    OneWay path(lends);
    path.Answer();  // LEND
    const std::string bytes(20 << 20, 'x');
    Transfer send;
    path.sender.Post({Tag(1, 1, 0, 0), {.kind = CallKind::kSend}},
                     {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, &send);
    for (int i = 0; i < 1000; ++i) {
      path.Send();
      path.Receive();
    }
    EXPECT_EQ(path.receiver.matching().early_bytes() > kEarlyCredit + kLent - 2 * kFrame, lends);
    EXPECT_EQ(path.receiver.matching().early_bytes() == 0, !lends);
    EXPECT_EQ(send.times, 0);
  }
}

// The RTS was sent before LEND had been read. The receiver has lent, so it waits for WITHDRAW.
TEST(Rendezvous, ARefusalBeforeLendIsRead) {
  OneWay path(/*lends=*/true);
  const std::string bytes(1 << 20, 'x');
  Transfer send;
  path.revoked[1] = true;
  path.sender.Post({Tag(1, 1, 0, 0), {.kind = CallKind::kSend}},
                   {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, &send);
  path.Send();
  path.Receive();
  for (int i = 0; i < 20; ++i) {
    path.Answer();
    path.Send();
    path.Receive();
    path.completions.Run();
  }
  EXPECT_EQ(send.times, 1);
  EXPECT_FALSE(path.receiver.matching().expecting());
}

int64_t ResidentMib() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4 / 1024;
}

// A peer that is refused and goes on gets its credit back, and must not keep our memory with it.
TEST(Rendezvous, RefusedMessagesHoldNoMemory) {
  OneWay path(/*lends=*/true);
  const int64_t before = ResidentMib();
  for (uint64_t message = 1; message <= 100; ++message) {
    const auto context = static_cast<Context>(1 + message % 2);
    const Envelope envelope{Tag(context, 1, 0, 0), {.kind = CallKind::kSend}};
    ASSERT_EQ(path.receiver.OnRts(envelope, 6 << 20, message), absl::OkStatus());
    for (int i = 0; i < 24; ++i) {
      const absl::StatusOr<PayloadPart> part = path.receiver.OnAhead(message, 256 << 10);
      ASSERT_EQ(part.status(), absl::OkStatus());
      std::memset(part->incoming->writable(part->at).data(), 1, 256 << 10);
      if (i < 23) {  // the last piece never comes
        path.receiver.Advance(part->incoming, 256 << 10);
      }
    }
    path.receiver.Revoke(context, absl::AbortedError("revoked"));
    EXPECT_EQ(path.receiver.matching().early_bytes(), 0);
  }
  EXPECT_LT(ResidentMib() - before, 100);
}

TEST(Rendezvous, BreachesAreRefused) {
  OneWay path(/*lends=*/false);
  EXPECT_FALSE(path.receiver.OnAhead(5, 10).ok());  // nothing was lent
  EXPECT_FALSE(path.sender.OnLend(0).ok());
  EXPECT_FALSE(path.sender.OnLend(static_cast<uint64_t>(kMostLent) + 1).ok());
  EXPECT_FALSE(path.sender.OnLend(~uint64_t{0}).ok());
  OneWay lending(/*lends=*/true);
  EXPECT_FALSE(lending.receiver.OnAhead(5, 10).ok());  // no RTS
  const Envelope envelope{Tag(1, 1, 0, 0), {.kind = CallKind::kSend}};
  ASSERT_TRUE(lending.receiver.OnRts(envelope, 100, 5).ok());
  EXPECT_FALSE(lending.receiver.OnData(5, 10).ok());    // not cleared
  EXPECT_FALSE(lending.receiver.OnAhead(5, 101).ok());  // longer than the message
  EXPECT_FALSE(lending.receiver.OnAhead(5, 0).ok());    // empty
  ASSERT_TRUE(lending.receiver.OnRts(envelope, 16 << 20, 6).ok());
  EXPECT_FALSE(lending.receiver.OnAhead(6, kEarlyCredit + kLent).ok());  // more than was lent
}

}  // namespace
}  // namespace entrain
