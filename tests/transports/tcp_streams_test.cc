// Payloads over several connections: they use these connections, arrive whole and in order, and the
// end of a connection is noticed. endpoint_contract_test runs the contract of every transport with
// them, as "tcp_streams".
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/pending_handshake.h"
#include "transports/tcp/tcp_address.h"
#include "transports/tcp/tcp_sockets.h"
#include "transports/tcp/tcp_transport.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20, kKiB = 1 << 10;

// Returns the bytes that each connection of this process has sent, by descriptor.
std::map<int, int64_t> SentByConnection() {
  std::map<int, int64_t> sent;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t peer_bytes = sizeof(peer);
    tcp_info info{};
    socklen_t info_bytes = sizeof(info);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
        peer.ss_family == AF_INET &&
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) == 0) {
      sent[fd] = static_cast<int64_t>(info.tcpi_bytes_sent);
    }
  }
  return sent;
}

class TcpStreamsTest : public testing::Test {
 protected:
  // `of_a`, `of_b`: ENTRAIN_TCP_STREAMS of a and of b.
  void Connect(const char* of_a, const char* of_b) {
    a = MakeNode("tcp", 1);
    b = MakeNode("tcp", 2);
    a->config.tcp_streams = of_a;
    b->config.tcp_streams = of_b;
    MakeTransportAsConfigured(*a);
    MakeTransportAsConfigured(*b);
    to_b = a->transport->Connect(b->config.self, b->transport->address()).value();
    to_a = b->transport->Connect(a->config.self, a->transport->address()).value();
  }
  static void MakeTransportAsConfigured(Node& node) {
    node.transport = CreateTcpTransport(node.config, &node.events).value();
  }
  void TearDown() override {
    for (Endpoint* endpoint : {to_b.get(), to_a.get()}) {
      if (endpoint != nullptr) {
        endpoint->Close(absl::AbortedError("end of test"));
      }
    }
    to_b.reset();
    to_a.reset();
  }
  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(10 * kSecond);
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      a->transport->Poll();
      b->transport->Poll();
    }
    return condition();
  }
  // Waits until this number of sockets is connected, besides the control lines, and both sides know
  // it. Counts both ends.
  void ExpectConnections(size_t beside) {
    const size_t count = beside + 2;
    EXPECT_TRUE(PollUntil([&] { return SentByConnection().size() >= count; }));
    for (int i = 0; i < 2000; ++i) {
      a->transport->Poll();
      b->transport->Poll();
    }
    EXPECT_EQ(SentByConnection().size(), count);
  }
  // Sends a message in each direction.
  void Exchange(int64_t bytes) {
    const Buffer from_a = Pattern(bytes, 1), from_b = Pattern(bytes, 2);
    Buffer at_a(from_a.size()), at_b(from_a.size());
    Transfer transfers[4];
    to_b->PostSend(Message(1), Of(from_a), &transfers[0]);
    to_a->PostSend(Message(1), Of(from_b), &transfers[1]);
    to_b->PostRecv(Message(1), Of(at_a), &transfers[2]);
    to_a->PostRecv(Message(1), Of(at_b), &transfers[3]);
    ASSERT_TRUE(PollUntil([&] {
      return transfers[0].times > 0 && transfers[1].times > 0 && transfers[2].times > 0 &&
             transfers[3].times > 0;
    })) << bytes;
    EXPECT_TRUE(at_a == from_b) << bytes;
    EXPECT_TRUE(at_b == from_a) << bytes;
  }

  std::unique_ptr<Node> a, b;
  std::unique_ptr<Endpoint> to_b, to_a;
};

TEST_F(TcpStreamsTest, CarryWhatIsLargeAndNothingElseDoes) {
  Connect("3", "3");
  ExpectConnections(8);
  const std::map<int, int64_t> before = SentByConnection();
  for (int i = 0; i < 12; ++i) {
    Exchange(kMiB);
  }
  int carrying = 0;
  for (const auto& [fd, sent] : SentByConnection()) {
    const int64_t now = sent - before.at(fd);
    if (now > 64 * kKiB) {
      EXPECT_GT(now, 2 * kMiB) << "of 12 MiB by three";
      EXPECT_LT(now, 6 * kMiB);
      ++carrying;
    }
  }
  EXPECT_EQ(carrying, 6);
}

TEST_F(TcpStreamsTest, EverySizeArrives) {
  Connect("3", "16");
  ExpectConnections(34);  // the side that wants more gets them
  for (const int64_t around : {32 * kKiB, 64 * kKiB, 96 * kKiB, 256 * kKiB, kMiB}) {
    for (const int64_t bytes : {around - 1, around, around + 1, around + 7}) {
      Exchange(bytes);
    }
  }
}

TEST_F(TcpStreamsTest, OfOneHostThereAreNoneUnlessAsked) {
  Connect("", "");
  ExpectConnections(2);
  Exchange(kMiB);
  EXPECT_EQ(SentByConnection().size(), 4u);
}

TEST_F(TcpStreamsTest, NoneIsMadeWithAPeerThatWantsNone) {
  for (const auto& [of_a, of_b] : {std::pair("4", "1"), std::pair("1", "4")}) {
    Connect(of_a, of_b);
    ExpectConnections(2);
    Exchange(kMiB);
    EXPECT_EQ(SentByConnection().size(), 4u) << of_a << " " << of_b;
    TearDown();
  }
}

TEST_F(TcpStreamsTest, MessagesOfATagMatchInTheOrderSentWhateverTheyGoBy) {
  Connect("4", "4");
  ExpectConnections(10);
  constexpr size_t kMessages = 12;
  std::vector<Buffer> out, in;
  Transfer sends[kMessages], receives[kMessages];
  for (size_t i = 0; i < kMessages; ++i) {
    out.push_back(Pattern(i % 2 == 0 ? 200 * kKiB : 100, static_cast<uint32_t>(i)));
    in.emplace_back(out.back().size());
  }
  for (size_t i = 0; i < kMessages; ++i) {
    to_b->PostSend(Message(1), Of(std::as_const(out[i])), &sends[i]);
    for (int turns = 0; turns < 3; ++turns) {
      // The message is early and incomplete: b claims it while half of it is there.
      a->transport->Poll();
      b->transport->Poll();
    }
    if (i >= 4) {
      to_a->PostRecv(Message(1), Of(in[i - 4]), &receives[i - 4]);
    }
  }
  for (size_t i = kMessages - 4; i < kMessages; ++i) {
    to_a->PostRecv(Message(1), Of(in[i]), &receives[i]);
  }
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(receives, receives + kMessages,
                       [](const Transfer& t) { return t.times > 0; });
  }));
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(receives[i].status.ok()) << receives[i].status;
    EXPECT_TRUE(in[i] == out[i]) << i;
  }
}

TEST_F(TcpStreamsTest, WhatWasSentBeforeControlAndTheEndComesBefore) {
  Connect("4", "4");
  ExpectConnections(10);
  constexpr size_t kMessages = 10;
  std::vector<Buffer> out, in;
  Transfer sends[kMessages], receives[kMessages];
  for (size_t i = 0; i < kMessages; ++i) {
    out.push_back(Pattern(250 * kKiB, static_cast<uint32_t>(i)));
    in.emplace_back(out.back().size());
    to_b->PostSend(Message(static_cast<uint32_t>(i)), Of(std::as_const(out[i])), &sends[i]);
  }
  const auto sent = [](const Transfer& t) { return t.times > 0; };
  const Deadline deadline = Deadline::After(10 * kSecond);
  while (!std::all_of(sends, sends + kMessages, sent) && !deadline.Passed(Clock::Real().Now())) {
    a->transport->Poll();
    b->transport->Poll();
  }
  ASSERT_TRUE(std::all_of(sends, sends + kMessages, sent));
  to_b->SendControl("all is sent");
  to_b->Close(absl::AbortedError("and gone"));
  int whole = -1;
  b->events.on_control = [&](Endpoint& from) {
    whole = 0;
    for (size_t i = 0; i < kMessages; ++i) {
      whole += from.TryRecv(Message(static_cast<uint32_t>(i)), Of(in[i])) == Endpoint::Next::kThis;
    }
  };
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  EXPECT_THAT(std::string(b->events.lost[0].message()), HasSubstr("and gone"));
  EXPECT_EQ(b->events.controls, std::vector<std::string>{"all is sent"});
  EXPECT_EQ(whole, static_cast<int>(kMessages));
  EXPECT_TRUE(in == out);
}

TEST_F(TcpStreamsTest, TheEndOfOneIsTheEndOfThePath) {
  Connect("3", "3");
  ExpectConnections(8);
  Exchange(kMiB);
  int ended = 0;  // counts the connections that carried payloads
  for (const auto& [fd, sent] : SentByConnection()) {
    if (sent > 64 * kKiB) {
      shutdown(fd, SHUT_RDWR);
      ++ended;
    }
  }
  ASSERT_GE(ended, 2);
  const Buffer out = Pattern(kMiB, 1);
  Buffer in(out.size());
  Transfer send, receive;
  to_b->PostSend(Message(7), Of(out), &send);
  to_a->PostRecv(Message(7), Of(in), &receive);
  ASSERT_TRUE(PollUntil([&] {
    return send.times > 0 && receive.times > 0 && !a->events.lost.empty() &&
           !b->events.lost.empty();
  }));
  EXPECT_FALSE(receive.status.ok());
  EXPECT_FALSE(in == out);
}

TEST_F(TcpStreamsTest, AStrangersIsNotUsed) {
  Connect("3", "3");
  ExpectConnections(8);
  ConnectionId elsewhere{};
  elsewhere[0] = 1;
  PendingHandshake pending =
      PendingHandshake::Dial(TcpAddress::Parse(b->transport->address())->address, a->config,
                             Deadline::After(5 * kSecond), elsewhere)
          .value();
  bool shaken = false;
  ASSERT_TRUE(PollUntil([&] {
    shaken = shaken || pending.Progress().value_or(false);
    return shaken;
  }));
  const Channel fd = pending.Take();
  ASSERT_EQ(WriteSome(fd.fd(), "data", 4).value(), 4u);
  Exchange(kMiB);
}

// A peer that the test plays, as b's other side. Its streams are as slow as a test wants.
class TcpStreamsOfAPeer : public testing::Test {
 protected:
  void SetUp() override {
    b = MakeNode("tcp", 2);
    b->config.tcp_streams = "2";
    b->transport = CreateTcpTransport(b->config, &b->events).value();
    config.self.fill(1);
    to_a = b->transport->Connect(config.self, b->transport->address()).value();
    first = Dial({});
    line = Dial(connection);
    for (size_t i = 0; i < 2; ++i) {
      streams[i] = Dial(connection);
      Say({.type = PacketType::kStands, .message = i});
    }
    for (int i = 0; i < 100; ++i) {
      b->transport->Poll();
    }
    ASSERT_TRUE(b->events.lost.empty()) << b->events.lost[0];
  }
  void TearDown() override {
    to_a->Close(absl::AbortedError("end of test"));
    to_a.reset();
  }

  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(10 * kSecond);
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      b->transport->Poll();
    }
    return condition();
  }
  // Polls long enough that anything that could happen has happened.
  void Settle() {
    for (int i = 0; i < 200; ++i) {
      b->transport->Poll();
    }
  }
  Channel Dial(const ConnectionId& further_to) {
    PendingHandshake pending =
        PendingHandshake::Dial(TcpAddress::Parse(b->transport->address())->address, config,
                               Deadline::After(5 * kSecond), further_to)
            .value();
    bool shaken = false;
    EXPECT_TRUE(PollUntil([&] {
      shaken = shaken || pending.Progress().value_or(false);
      return shaken;
    }));
    Settle();
    if (further_to == ConnectionId()) {
      connection = pending.connection();
    }
    return pending.Take();
  }
  static void Write(const Channel& to, const void* data, size_t bytes) {
    EXPECT_EQ(WriteSome(to.fd(), data, bytes).value(), bytes);
  }
  void Say(const PacketHeader& header, const std::string& text = "") {
    Write(first, &header, sizeof(header));
    if (!text.empty()) {
      Write(first, text.data(), text.size());
    }
  }
  // Sends the header of a message whose two halves come over the two streams.
  void SayHalves(uint32_t tag, const Buffer& bytes) {
    Say({.type = PacketType::kEager,
         .streams = 3,
         .tag = Message(tag).tag.bits(),
         .descriptor = Message(tag).descriptor,
         .bytes = static_cast<int64_t>(bytes.size())});
  }
  void SayText(PacketType type, const std::string& text) {
    Say({.type = type, .bytes = static_cast<int64_t>(text.size())}, text);
  }

  TransportConfig config;
  std::unique_ptr<Node> b;
  std::unique_ptr<Endpoint> to_a;
  ConnectionId connection{};
  Channel line, first, streams[2];
};

TEST_F(TcpStreamsOfAPeer, SlicesComeInAnyOrder) {
  const Buffer out = Pattern(1000, 1);
  Buffer in(out.size());
  Transfer receive;
  to_a->PostRecv(Message(1), Of(in), &receive);
  SayHalves(1, out);
  Settle();
  Write(streams[1], out.data() + 500, 300);
  Settle();
  Write(streams[0], out.data(), 500);
  Settle();
  EXPECT_EQ(receive.times, 0);
  Write(streams[1], out.data() + 800, 200);
  ASSERT_TRUE(PollUntil([&] { return receive.times > 0; }));
  EXPECT_TRUE(receive.status.ok()) << receive.status;
  EXPECT_TRUE(in == out);
}

TEST_F(TcpStreamsOfAPeer, AnEarlyMessageIsClaimedWhileItsLaterSliceIsThere) {
  const Buffer out = Pattern(1000, 1);
  Buffer in(out.size());
  Transfer receive;
  SayHalves(1, out);
  Write(streams[1], out.data() + 500, 400);
  Settle();
  EXPECT_EQ(to_a->TryRecv(Message(1), Of(in)), Endpoint::Next::kOther);
  to_a->PostRecv(Message(1), Of(in), &receive);
  Write(streams[0], out.data(), 500);
  Settle();
  EXPECT_EQ(receive.times, 0);
  Write(streams[1], out.data() + 900, 100);
  ASSERT_TRUE(PollUntil([&] { return receive.times > 0; }));
  EXPECT_TRUE(in == out);
}

TEST_F(TcpStreamsOfAPeer, ControlAndTheEndWaitForWhatWasSentBefore) {
  const Buffer out = Pattern(1000, 1);
  Buffer in(out.size());
  Transfer receive;
  to_a->PostRecv(Message(1), Of(in), &receive);
  SayHalves(1, out);
  SayText(PacketType::kControl, "all is sent");
  // Control characters must not reach a terminal or log.
  SayText(PacketType::kClose, "and \x1b[2Jgone\xff");
  first.Reset();
  Write(streams[0], out.data(), 500);
  Settle();
  EXPECT_TRUE(b->events.controls.empty());
  EXPECT_TRUE(b->events.lost.empty());
  EXPECT_EQ(receive.times, 0);
  Write(streams[1], out.data() + 500, 500);
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  EXPECT_EQ(b->events.controls, std::vector<std::string>{"all is sent"});
  EXPECT_THAT(std::string(b->events.lost[0].message()), HasSubstr("and ?[2Jgone?"));
  EXPECT_EQ(receive.times, 1);
  EXPECT_TRUE(receive.status.ok()) << receive.status;
  EXPECT_TRUE(in == out);
}

TEST_F(TcpStreamsOfAPeer, AnEndWithoutAWordWaitsToo) {
  const Buffer out = Pattern(1000, 1);
  Buffer in(out.size());
  Transfer receive;
  to_a->PostRecv(Message(1), Of(in), &receive);
  SayHalves(1, out);
  first.Reset();
  Write(streams[0], out.data(), 500);
  Settle();
  EXPECT_TRUE(b->events.lost.empty());
  Write(streams[1], out.data() + 500, 500);
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  EXPECT_TRUE(receive.status.ok()) << receive.status;
  EXPECT_TRUE(in == out);
}

TEST_F(TcpStreamsOfAPeer, AStreamThatEndsAmidAPayloadEndsThePathAsThePeerSays) {
  for (const bool says : {true, false}) {
    if (!says) {
      TearDown();
      SetUp();
    }
    const Buffer out = Pattern(1000, 1);
    Buffer in(out.size());
    Transfer receive;
    to_a->PostRecv(Message(1), Of(in), &receive);
    SayHalves(1, out);
    if (says) {
      SayText(PacketType::kClose, "out of memory");
    }
    Write(streams[0], out.data(), 500);
    Write(streams[1], out.data() + 500, 100);
    streams[1].Reset();
    ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty() && receive.times > 0; }));
    EXPECT_THAT(std::string(b->events.lost[0].message()),
                HasSubstr(says ? "out of memory" : "a stream was closed"));
    EXPECT_FALSE(receive.status.ok());
  }
}

TEST(TcpStreamsSetting, IsANumberFromOneToSixteen) {
  EXPECT_EQ(ParseTcpStreams("").value(), 0);
  EXPECT_EQ(ParseTcpStreams("1").value(), 1);
  EXPECT_EQ(ParseTcpStreams("16").value(), 16);
  for (const char* const text : {"0", "17", "-1", "four", "1e1"}) {
    const auto streams = ParseTcpStreams(text);
    EXPECT_EQ(streams.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(streams.status().message()), HasSubstr(text));
  }
}

TEST(TcpCongestionSetting, IsOneThatTheProcessMayChoose) {
  EXPECT_EQ(CheckTcpCongestion(""), absl::OkStatus());
  EXPECT_EQ(CheckTcpCongestion("reno"), absl::OkStatus());
  for (const char* const name : {"no-such", "a-name-that-is-longer-than-any-of-the-kernel"}) {
    const absl::Status status = CheckTcpCongestion(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("reno")));
  }
}

}  // namespace
}  // namespace entrain
