// Invariant 5 over tcp: a connection to a listener, and the bytes of an accepted peer, can harm
// only the connection itself.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/pending_handshake.h"
#include "transports/tcp/tcp_address.h"

namespace entrain {
namespace {

using testing::HasSubstr;

class TcpStranger : public testing::Test {
 protected:
  void SetUp() override {
    b = MakeNode("tcp", 2);
    where = TcpAddress::Parse(b->transport->address())->address;
  }
  void TearDown() override {
    if (path != nullptr) {
      path->Close(absl::AbortedError("end of test"));
    }
  }

  bool PollUntil(const std::function<bool()>& condition, double seconds = 10) {
    const Deadline deadline = Deadline::After(static_cast<int64_t>(seconds * kSecond));
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      b->transport->Poll();
      if (a != nullptr) {
        a->transport->Poll();
      }
    }
    return condition();
  }

  Fd ConnectRaw() { return entrain::Connect(where, Stop{Deadline::After(5 * kSecond)}).value(); }

  // Connects properly to b as peer 1. b has a path to it.
  Channel EnterAsPeer() {
    TransportConfig config;
    config.self.fill(1);
    path = b->transport->Connect(config.self, b->transport->address()).value();
    const Deadline by = Deadline::After(5 * kSecond);
    PendingHandshake pending = PendingHandshake::Dial(where, config, by).value();
    PendingHandshake beside =
        PendingHandshake::Dial(where, config, by, pending.connection()).value();
    for (PendingHandshake* each : {&pending, &beside}) {
      EXPECT_TRUE(PollUntil([&] {
        const absl::StatusOr<bool> progress = each->Progress();
        EXPECT_TRUE(progress.ok()) << progress.status();
        return progress.value_or(true);
      }));
    }
    line = beside.Take();
    return pending.Take();
  }

  // Returns whether the other side has ended the connection.
  static bool Ended(int fd) {
    char byte[4096];
    absl::StatusOr<size_t> got = ReadSome(fd, byte, sizeof(byte));
    while (got.ok() && *got > 0) {
      got = ReadSome(fd, byte, sizeof(byte));
    }
    return !got.ok();
  }

  void ExpectOrdinaryTraffic(absl::string_view name = "tcp") {
    a = MakeNode(name, 1);
    auto to_b = a->transport->Connect(b->config.self, b->transport->address()).value();
    auto to_a = b->transport->Connect(a->config.self, a->transport->address()).value();
    const Buffer out = Pattern(1 << 20, 1);
    Buffer in(out.size());
    Transfer send, receive;
    to_b->PostSend(Message(1), Of(out), &send);
    to_a->PostRecv(Message(1), Of(in), &receive);
    ASSERT_TRUE(PollUntil([&] { return send.times > 0 && receive.times > 0; }));
    EXPECT_TRUE(receive.status.ok()) << receive.status;
    EXPECT_TRUE(in == out);
    to_b->Close(absl::AbortedError("end"));
    to_a->Close(absl::AbortedError("end"));
    to_b.reset();
    to_a.reset();
    a.reset();
  }

  std::unique_ptr<Node> a, b;
  std::unique_ptr<Endpoint> path;
  Channel line;  // connection of the peer from EnterAsPeer
  Address where;
};

TEST_F(TcpStranger, WhoeverIsNotAPeerIsTurnedAwayAndOthersAreServed) {
  std::string random(4096, '\0');
  std::mt19937 generator(1);
  std::generate(random.begin(), random.end(), [&] { return static_cast<char>(generator()); });
  const std::string texts[] = {
      "GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: scanner/1.0\r\nAccept: */*\r\n\r\n" +
          std::string(64, ' '),
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(200, '\x5a'),
      std::string(64, '\0'),
      random,
      "ENTRAIN1" + std::string(56, '\xff'),
      "SSH-2.0-OpenSSH_9.2\r\n" + std::string(64, 'x'),
  };
  std::vector<Fd> strangers;
  for (const std::string& text : texts) {
    strangers.push_back(ConnectRaw());
    (void)WriteSome(strangers.back().get(), text.data(), text.size());
  }
  for (const Fd& stranger : strangers) {
    EXPECT_TRUE(PollUntil([&] { return Ended(stranger.get()); }));
  }
  ExpectOrdinaryTraffic();
}

TEST_F(TcpStranger, HalfOpenAndSilentConnectionsKeepNobodyOut) {
  std::vector<Fd> silent;
  for (int i = 0; i < 400; ++i) {  // more than are kept
    silent.push_back(ConnectRaw());
    if (i % 3 == 0) {
      (void)WriteSome(silent.back().get(), "ENTRAIN1", 8);  // and sends nothing more
    }
    b->transport->Poll();
  }
  ExpectOrdinaryTraffic();
  int kept = 0;
  for (const Fd& fd : silent) {
    kept += Ended(fd.get()) ? 0 : 1;
  }
  EXPECT_LE(kept, 256);
}

TEST_F(TcpStranger, SilentConnectionsAreEndedInTime) {
  FakeClock clock;
  Node node;
  node.config.self.fill(7);
  node.config.clock = &clock;
  MakeTransport("tcp", node);
  where = TcpAddress::Parse(node.transport->address())->address;
  const Fd silent = ConnectRaw();
  const Fd half = ConnectRaw();
  (void)WriteSome(half.get(), "ENTRAIN1", 8);
  for (int i = 0; i < 100; ++i) {
    node.transport->Poll();
  }
  EXPECT_FALSE(Ended(silent.get()));
  clock.Advance(11 * kSecond);
  for (int i = 0; i < 100; ++i) {
    node.transport->Poll();
  }
  EXPECT_TRUE(Ended(silent.get()));
  EXPECT_TRUE(Ended(half.get()));
}

// With certificates, everybody can pass the proof and begin TLS.
TEST_F(TcpStranger, ConnectionsThatBeginTlsAndStallKeepNobodyOut) {
  b = MakeNode("tcp_certificates", 2);
  where = TcpAddress::Parse(b->transport->address())->address;
  std::vector<Fd> stalled;
  for (int i = 0; i < 400; ++i) {  // more than are kept
    stalled.push_back(ConnectRaw());
    Handshake stranger(true, Purpose::kData, {9}, "", {}, {.tls = true, .certificates = true});
    const std::string mine = stranger.TakeOutput();
    ASSERT_EQ(WriteSome(stalled.back().get(), mine.data(), mine.size()).value_or(0), mine.size());
    char theirs[Handshake::kHelloBytes];
    size_t have = 0;
    if (i < 100) {  // the others do not even wait for the listener's hello
      ASSERT_TRUE(PollUntil([&] {
        have += ReadSome(stalled.back().get(), theirs + have, sizeof(theirs) - have).value_or(0);
        return have == sizeof(theirs);
      }));
      ASSERT_TRUE(stranger.Consume({theirs, sizeof(theirs)}).ok());
      const std::string begin = stranger.TakeOutput() + std::string("\x16\x03\x01\x02\x00\x01", 6);
      (void)WriteSome(stalled.back().get(), begin.data(), begin.size());
    }
    b->transport->Poll();
  }
  ExpectOrdinaryTraffic("tcp_certificates");
  const auto kept =
      std::count_if(stalled.begin(), stalled.end(), [](const Fd& fd) { return !Ended(fd.get()); });
  EXPECT_LE(kept, 256);
  EXPECT_GT(kept, 0);
}

TEST_F(TcpStranger, ADifferentKeyIsRefusedOnBothSidesAndSaidSo) {
  for (const auto& [key_a, key_b] :
       {std::pair("right", "wrong"), std::pair("right", ""), std::pair("", "right")}) {
    SCOPED_TRACE(absl::StrCat("\"", key_a, "\" and \"", key_b, "\""));
    auto dialer = MakeNode("tcp", 1, key_a), listener = MakeNode("tcp", 2, key_b);
    auto out =
        dialer->transport->Connect(listener->config.self, listener->transport->address()).value();
    auto in =
        listener->transport->Connect(dialer->config.self, dialer->transport->address()).value();
    Transfer receive;
    Buffer buffer(8);
    out->PostRecv(Message(1), Of(buffer), &receive);
    const Deadline deadline = Deadline::After(5 * kSecond);
    while (receive.times == 0 && !deadline.Passed(Clock::Real().Now())) {
      dialer->transport->Poll();
      listener->transport->Poll();
    }
    ASSERT_EQ(receive.times, 1);
    EXPECT_THAT(std::string(receive.status.message()), HasSubstr("key"));
    EXPECT_TRUE(listener->events.lost.empty())
        << "a stranger ended a path: " << listener->events.lost[0];
    out->Close(absl::AbortedError("end"));
    in->Close(absl::AbortedError("end"));
  }
}

TEST_F(TcpStranger, OneKeyOnBothSidesConnects) {
  b = MakeNode("tcp", 2, "secret");
  auto dialer = MakeNode("tcp", 1, "secret");
  a = std::move(dialer);
  auto out = a->transport->Connect(b->config.self, b->transport->address()).value();
  auto in = b->transport->Connect(a->config.self, a->transport->address()).value();
  out->SendControl("hello");
  EXPECT_TRUE(PollUntil([&] { return b->events.controls.size() == 1; }));
  out->Close(absl::AbortedError("end"));
  in->Close(absl::AbortedError("end"));
}

TEST_F(TcpStranger, AnAddressTakenOverByAnotherProcessIsNotedByItsId) {
  a = MakeNode("tcp", 1);
  PeerId expected;
  expected.fill(9);
  auto out = a->transport->Connect(expected, b->transport->address()).value();
  ASSERT_TRUE(PollUntil([&] { return !a->events.lost.empty(); }));
  EXPECT_THAT(std::string(a->events.lost[0].message()), HasSubstr("another process"));
}

TEST_F(TcpStranger, NobodyListeningIsLostAtOnce) {
  const std::string address = b->transport->address();
  b = MakeNode("tcp", 2);
  a = MakeNode("tcp", 1);
  auto out = a->transport->Connect(b->config.self, address).value();
  ASSERT_TRUE(PollUntil([&] { return !a->events.lost.empty(); }, 2));
  EXPECT_THAT(std::string(a->events.lost[0].message()), HasSubstr("refused"));
}

TEST_F(TcpStranger, EveryBreachOfProtocolEndsThePathAndSaysSo) {
  const Envelope envelope = Message(1);
  PacketHeader eager{
      .type = PacketType::kEager, .tag = envelope.tag.bits(), .descriptor = envelope.descriptor};
  PacketHeader rts = eager;
  rts.type = PacketType::kRts;
  rts.message = 1;
  std::vector<std::pair<const char*, std::vector<PacketHeader>>> cases;
  const auto add = [&](const char* name, PacketHeader header) {
    cases.push_back({name, {header}});
  };
  PacketHeader header = eager;
  header.type = static_cast<PacketType>(0);
  add("type 0", header);
  header.type = static_cast<PacketType>(200);
  add("type 200", header);
  header = eager;
  header.version = 9;
  add("version 9", header);
  for (const int64_t bytes : {int64_t{-1}, kFrameBytes + 1, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    header = eager;
    header.bytes = bytes;
    add("eager of a bad length", header);
    header.type = PacketType::kData;
    add("data of a bad length", header);
    header.type = PacketType::kControl;
    add("control of a bad length", header);
  }
  header = rts;
  header.bytes = int64_t{1} << 62;
  add("RTS of a bad length", header);
  header = rts;
  header.message = 0;
  add("RTS without a number", header);
  header = {};
  header.type = PacketType::kData;
  header.bytes = 8;
  header.message = 77;
  add("data that was not cleared", header);
  header = {};
  header.credit = 100;
  add("credit that was not used", header);
  header = eager;
  header.bytes = 8;
  header.streams = 1;
  add("a payload by a stream that there is not", header);
  header.streams = 0x8000;
  add("a payload by the last stream", header);
  header.streams = 0xffff;
  add("more slices than bytes", header);
  header = {};
  header.streams = 1;
  add("credit by a stream", header);
  header = {};
  header.type = PacketType::kStands;
  add("a stream that nobody dialled", header);
  for (auto& [name, headers] : cases) {
    SCOPED_TRACE(name);
    b = MakeNode("tcp", 2);
    where = TcpAddress::Parse(b->transport->address())->address;
    const Channel peer = EnterAsPeer();
    Transfer receive;
    Buffer in(8);
    path->PostRecv(Message(5), Of(in), &receive);
    std::string bytes;
    for (const PacketHeader& frame : headers) {
      bytes.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
    }
    bytes.append(100, 'x');
    ASSERT_EQ(WriteSome(peer.fd(), bytes.data(), bytes.size()).value(), bytes.size());
    ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty() && receive.times == 1; }));
    EXPECT_THAT(std::string(b->events.lost[0].message()), HasSubstr("protocol"));
    EXPECT_TRUE(PollUntil([&] { return Ended(peer.fd()); }));
    path->Close(absl::AbortedError("next"));
    path.reset();
  }
}

TEST_F(TcpStranger, ABreachOfProtocolOnTheControlLineEndsThePathAndSaysSo) {
  PacketHeader large{.type = PacketType::kControl};
  large.bytes = kMaxControlBytes + 1;
  for (const PacketHeader& header : {PacketHeader{.type = PacketType::kEager}, large,
                                     PacketHeader{.type = PacketType::kControl}}) {
    SCOPED_TRACE(
        absl::StrCat("type ", static_cast<int>(header.type), ", ", header.bytes, " bytes"));
    b = MakeNode("tcp", 2);
    where = TcpAddress::Parse(b->transport->address())->address;
    const Channel peer = EnterAsPeer();
    EXPECT_TRUE(WriteSome(line.fd(), &header, sizeof(header)).ok());
    ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
    EXPECT_THAT(std::string(b->events.lost[0].message()), HasSubstr("protocol"));
    EXPECT_TRUE(PollUntil([&] { return Ended(peer.fd()) && Ended(line.fd()); }));
    path->Close(absl::AbortedError("next"));
    path.reset();
  }
}

// The kernel reports a reset only once, to the first call that asks. The process may live on.
TEST_F(TcpStranger, AResetIsNotTakenForTheEndOfAProcess) {
  for (const bool line_too : {false, true}) {
    for (const int asks_first : {0, 1, 2}) {
      SCOPED_TRACE(asks_first);
      b = MakeNode("tcp", 2);
      where = TcpAddress::Parse(b->transport->address())->address;
      Channel peer = EnterAsPeer();
      const linger reset = {1, 0};
      for (Channel* fd : {&peer, line_too ? &line : &peer}) {
        (void)setsockopt(fd->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        fd->Reset();
      }
      Buffer buffer(8);
      if (asks_first == 1) {
        EXPECT_FALSE(Copies(*path, Message(1), Of(std::as_const(buffer))));
      } else if (asks_first == 2) {
        EXPECT_EQ(path->TryRecv(Message(1), Of(buffer)), Endpoint::Next::kOther);
      }
      ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
      EXPECT_THAT(std::string(b->events.lost[0].message()),
                  HasSubstr("whether its process lives is unknown"));
      path->Close(absl::AbortedError("next"));
      path.reset();
    }
  }
}

// The kernel of a dead process resets the connection on which unread bytes wait, and closes the control
// line.
TEST_F(TcpStranger, AResetBesideAClosedControlLineIsTheEndOfAProcess) {
  Channel peer = EnterAsPeer();
  const linger reset = {1, 0};
  ASSERT_EQ(setsockopt(peer.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  peer.Reset();
  line.Reset();
  ASSERT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  EXPECT_TRUE(IsPeerEnded(b->events.lost[0])) << b->events.lost[0];
  path->Close(absl::AbortedError("next"));
  path.reset();
}

// A process without a free descriptor cannot accept its peers. It says so instead of waiting for them.
TEST_F(TcpStranger, AShortageOfDescriptorsEndsThePathsThatWaitForPeers) {
  TransportConfig config;
  config.self.fill(1);
  path = b->transport->Connect(config.self, b->transport->address()).value();
  const Fd peer = ConnectRaw();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(PollUntil([&] { return !b->events.lost.empty(); }));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(b->events.lost.empty());
  EXPECT_EQ(b->events.lost[0].code(), absl::StatusCode::kResourceExhausted) << b->events.lost[0];
  EXPECT_THAT(std::string(b->events.lost[0].message()),
              HasSubstr("cannot accept a connection: Too many open files"));
  path->Close(absl::AbortedError("next"));
  path.reset();
}

// Returns how many connections of this process have this option, of TCP or SO_KEEPALIVE, with a
// value other than 0.
int CountConnectionsWith(int level, int option) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t peer_bytes = sizeof(peer);
    int value = 0;
    socklen_t bytes = sizeof(value);
    const bool is_one = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
                        peer.ss_family == AF_INET;
    count += is_one && getsockopt(fd, level, option, &value, &bytes) == 0 && value != 0 ? 1 : 0;
  }
  return count;
}

// A middlebox may cut the control line. The end of the peer cuts it too, but then the first
// connection ends as well.
TEST_F(TcpStranger, WithoutItsControlLineAPathGoesOn) {
  const Channel peer = EnterAsPeer();
  ASSERT_TRUE(path->SendUrgent("by the line"));
  const auto read = [&](const Channel& from, size_t bytes) {
    std::string frame(sizeof(PacketHeader) + bytes, '\0');
    size_t have = 0;
    EXPECT_TRUE(PollUntil([&] {
      have += ReadSome(from.fd(), frame.data() + have, frame.size() - have).value();
      return have == frame.size();
    }));
    return frame.substr(sizeof(PacketHeader));
  };
  EXPECT_EQ(read(line, 11), "by the line");
  EXPECT_EQ(CountConnectionsWith(IPPROTO_TCP, TCP_USER_TIMEOUT), 1);
  const linger reset = {1, 0};
  ASSERT_EQ(setsockopt(line.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  line.Reset();
  // The cut is not noticed yet.
  ASSERT_TRUE(path->SendUrgent("one"));
  ASSERT_TRUE(path->SendUrgent("two"));
  EXPECT_EQ(read(peer, 3), "one");
  EXPECT_EQ(read(peer, 3), "two");
  EXPECT_FALSE(path->SendUrgent("too late"));
  path->SendControl("beside data");
  EXPECT_EQ(read(peer, 11), "beside data");
  EXPECT_TRUE(b->events.lost.empty());
  // The first connection's window may stay shut as long as the peer's process is stopped.
  EXPECT_EQ(CountConnectionsWith(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(CountConnectionsWith(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

TEST_F(TcpStranger, MoreEagerBytesThanTheCreditEndThePath) {
  const Channel peer = EnterAsPeer();
  PacketHeader header{.type = PacketType::kEager,
                      .tag = Message(1).tag.bits(),
                      .descriptor = Message(1).descriptor};
  header.bytes = kFrameBytes;
  std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
  frame.append(static_cast<size_t>(kFrameBytes), 'x');
  size_t sent = 0;
  ASSERT_TRUE(PollUntil([&] {
    const absl::StatusOr<size_t> wrote =
        WriteSome(peer.fd(), frame.data() + sent, frame.size() - sent);
    sent = wrote.ok() ? (sent + *wrote) % frame.size() : 0;
    return !b->events.lost.empty();
  }));
  EXPECT_THAT(std::string(b->events.lost[0].message()), HasSubstr("protocol"));
}

// Frames of all kinds, mostly valid. Fields come from a small set, so that frames refer to each
// other.
TEST_F(TcpStranger, RandomFramesNeverDoMoreThanEndThePath) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    b = MakeNode("tcp", 2);
    where = TcpAddress::Parse(b->transport->address())->address;
    const Channel peer = EnterAsPeer();
    std::vector<Buffer> buffers;
    Transfer transfers[20];
    for (uint32_t i = 0; i < 10; ++i) {
      buffers.emplace_back(random() % 3 == 0 ? 600'000 : random() % 64);
      path->PostRecv(Message(i % 4), Of(buffers.back()), &transfers[2 * i]);
      path->PostSend(Message(i % 4), Of(std::as_const(buffers.back())), &transfers[2 * i + 1]);
    }
    for (int i = 0; i < 300 && b->events.lost.empty(); ++i) {
      PacketHeader header;
      header.type = static_cast<PacketType>(1 + random() % 10);
      if (header.type == PacketType::kClose) {
        header.type = PacketType::kStands;
      }
      header.streams = random() % 50 == 0 ? static_cast<uint16_t>(random()) : 0;
      header.tag = Message(random() % 4).tag.bits();
      header.descriptor = Message(0).descriptor;
      header.message = random() % 2 == 0 ? random() % 8 : (1 << 24) + random() % 12;
      header.bytes = header.type == PacketType::kRts ? random() % 700'000 : random() % 64;
      if (header.type > PacketType::kRts && header.type != PacketType::kControl &&
          header.type != PacketType::kData) {
        header.bytes = 0;
      }
      std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
      frame.append(static_cast<size_t>(PayloadOf(header)), 'y');
      if (random() % 100 == 0) {
        frame[random() % frame.size()] ^= static_cast<char>(1 << random() % 8);
      }
      (void)WriteSome(peer.fd(), frame.data(), frame.size());
      if (random() % 20 == 0) {
        (void)WriteSome(line.fd(), frame.data(), frame.size());
      }
      b->transport->Poll();
      (void)Ended(peer.fd());  // discards what was received
    }
    path->Close(absl::AbortedError("next"));
    b->transport->Poll();
    for (const Transfer& transfer : transfers) {
      EXPECT_EQ(transfer.times, 1);
    }
    path.reset();
  }
}

}  // namespace
}  // namespace entrain
