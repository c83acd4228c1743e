// The sockets of a path over tcp: their options, and the events that they register with epoll.
#include <set>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/tcp/control_line.h"
#include "transports/tcp/tcp_sockets.h"

namespace entrain {
namespace {

// Returns the options by descriptor, for every connection of this process.
std::vector<std::string> CongestionControlsOfConnections() {
  std::vector<std::string> names;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t peer_bytes = sizeof(peer);
    char name[16] = "";
    socklen_t name_bytes = sizeof(name);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) &&
        getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &name_bytes) == 0) {
      names.emplace_back(name);
    }
  }
  return names;
}

std::string DefaultCongestionControl() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  char name[16] = "";
  socklen_t name_bytes = sizeof(name);
  getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &name_bytes);
  return name;
}

TEST(TcpSocket, BetweenProcessesOfOneHostNothingIsPaced) {
  const std::unique_ptr<Node> a = MakeNode("tcp", 1), b = MakeNode("tcp", 2);
  const auto to_b = a->transport->Connect(b->config.self, b->transport->address()).value();
  const auto to_a = b->transport->Connect(a->config.self, a->transport->address()).value();
  if (DefaultCongestionControl() == "reno") {
    GTEST_SKIP() << "the host's default is reno";
  }
  const Buffer out = Pattern(1 << 20, 1);
  Buffer in(out.size());
  Transfer send, receive;
  to_b->PostSend(Message(1), Of(out), &send);
  to_a->PostRecv(Message(1), Of(in), &receive);
  const Deadline deadline = Deadline::After(10 * kSecond);
  while ((send.times == 0 || receive.times == 0) && !deadline.Passed(Clock::Real().Now())) {
    a->transport->Poll();
    b->transport->Poll();
  }
  ASSERT_TRUE(receive.status.ok()) << receive.status;
  EXPECT_EQ(CongestionControlsOfConnections(), std::vector<std::string>(4, "reno"));
  to_b->Close(absl::AbortedError("end"));
  to_a->Close(absl::AbortedError("end"));
}

// Each message has either arrived at the other end whole, or can never arrive.
TEST(TcpSocket, AControlLineKnowsWhatHasNotLeft) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  ControlLine line, other;
  line.Attach(Channel(Fd(ends[0])), false, KeepAlive());
  other.Attach(Channel(Fd(ends[1])), false, KeepAlive());
  std::vector<std::string> sent;
  while (!line.stuck()) {
    // The size is such that the socket's buffer is no multiple of it.
    sent.push_back(std::string(kMaxControlBytes - sent.size() % 7, static_cast<char>(sent.size())));
    line.Send(sent.back());
    ASSERT_TRUE(line.Write().ok());
  }
  for (int i = 0; i < 3; ++i) {
    sent.push_back(absl::StrCat("after that, ", i));
    line.Send(sent.back());
  }
  std::vector<std::string> here;
  for (std::string text; other.Read(&text).ok() && !text.empty();) {
    here.push_back(text);
  }
  EXPECT_GE(here.size(), 10u);
  const std::vector<std::string> unsent = line.TakeUnsent();
  EXPECT_GE(unsent.size(), 4u);
  here.insert(here.end(), unsent.begin(), unsent.end());
  EXPECT_TRUE(here == sent);
  EXPECT_FALSE(line.pending());
  EXPECT_TRUE(line.TakeUnsent().empty());
}

// Two ends of a TCP connection of this process.
struct Ends {
  Fd ours, peers;
};

Ends ConnectedEnds() {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  Ends ends;
  ends.ours = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(ends.ours.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
  ends.peers = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return ends;
}

// The transport of one path. Records the watched descriptors.
struct OnePath final : TcpShared {
  OnePath() : TcpShared(nullptr, TimedWait::Create().value()) {}
  void OnConnected(TcpEndpoint*, PathSockets) override {}
  bool OnFurther(const PeerId&, const ConnectionId&, const ConnectionId&, Channel*) override {
    return false;
  }
  void DialStream(TcpEndpoint*) override {}
  void OnWatched(TcpEndpoint*, int fd) override { watched.insert(fd); }
  void OnUnwatched(int fd) override { watched.erase(fd); }
  void OnClosedEarly(TcpEndpoint*, const absl::Status&) override {}
  void OnDisconnected(TcpEndpoint*) override {}
  void OnDestroyed(TcpEndpoint*) override {}
  std::set<int> watched;
};

class TcpSocketsTest : public testing::Test {
 protected:
  void SetUp() override {
    Ends first = ConnectedEnds(), line = ConnectedEnds();
    peer_first_ = std::move(first.peers);
    peer_line_ = std::move(line.peers);
    PathSockets both;
    both.first = Channel(std::move(first.ours));
    both.line = Channel(std::move(line.ours));
    ASSERT_TRUE(sockets_.Open(std::move(both), KeepAlive()).ok());
  }
  int first() { return sockets_.first().fd(); }
  // Adds a stream and returns the peer's end.
  Fd AddStream() {
    Ends ends = ConnectedEnds();
    sockets_.streams().Add(Channel(std::move(ends.ours)));
    EXPECT_TRUE(sockets_.TakeStreams().ok());
    return std::move(ends.peers);
  }
  // Returns the descriptors that epoll reports. Bytes on loopback arrive within the call of send.
  std::set<int> Ready() {
    std::set<int> ready;
    shared_.waiter->ForEachReady([&](int fd) { ready.insert(fd); });
    return ready;
  }
  static void SendByte(const Fd& to) { ASSERT_EQ(send(to.get(), "x", 1, MSG_NOSIGNAL), 1); }

  OnePath shared_;
  TcpSockets sockets_{&shared_, nullptr};
  Fd peer_first_, peer_line_;
};

TEST_F(TcpSocketsTest, OpenWatchesTheInputOfBothConnections) {
  const int line = sockets_.line().fd();
  EXPECT_EQ(shared_.watched, (std::set<int>{first(), line}));
  EXPECT_TRUE(Ready().empty());
  SendByte(peer_line_);
  EXPECT_EQ(Ready(), std::set<int>{line});
  SendByte(peer_first_);
  EXPECT_EQ(Ready(), (std::set<int>{first(), line}));
}

TEST_F(TcpSocketsTest, WatchRegistersExactlyWhatIsAskedFor) {
  SendByte(peer_first_);
  ASSERT_TRUE(sockets_.Watch(/*input=*/false, /*room=*/false).ok());
  EXPECT_TRUE(Ready().empty());
  ASSERT_TRUE(sockets_.Watch(/*input=*/false, /*room=*/true).ok());
  EXPECT_TRUE(sockets_.watches_room());
  EXPECT_EQ(Ready(), std::set<int>{first()});
  ASSERT_TRUE(sockets_.Watch(/*input=*/false, /*room=*/false).ok());
  EXPECT_FALSE(sockets_.watches_room());
  EXPECT_TRUE(Ready().empty());
  ASSERT_TRUE(sockets_.Watch(/*input=*/true, /*room=*/false).ok());
  EXPECT_EQ(Ready(), std::set<int>{first()});
}

TEST_F(TcpSocketsTest, WatchAlsoKeepsWhatIsRegistered) {
  ASSERT_TRUE(sockets_.Watch(/*input=*/false, /*room=*/true).ok());
  ASSERT_TRUE(sockets_.WatchAlso(/*input=*/true).ok());
  EXPECT_TRUE(sockets_.watches_room());
  ASSERT_TRUE(sockets_.Watch(/*input=*/true, /*room=*/false).ok());
  ASSERT_TRUE(sockets_.WatchAlso(/*input=*/false).ok());
  SendByte(peer_first_);
  EXPECT_EQ(Ready(), std::set<int>{first()});
}

TEST_F(TcpSocketsTest, TheControlLineIsWatchedForRoomWhileItHasMessages) {
  const int line = sockets_.line().fd();
  sockets_.line().Send("urgent");
  ASSERT_TRUE(sockets_.Watch(/*input=*/true, /*room=*/false).ok());
  EXPECT_EQ(Ready(), std::set<int>{line});
  ASSERT_TRUE(sockets_.line().Write().ok());
  ASSERT_TRUE(sockets_.WatchAlso(/*input=*/true).ok());
  EXPECT_TRUE(Ready().empty());
}

TEST_F(TcpSocketsTest, WithoutItsControlLineTheOthersAreWatched) {
  sockets_.CloseLine();
  EXPECT_EQ(shared_.watched, std::set<int>{first()});
  SendByte(peer_first_);
  ASSERT_TRUE(sockets_.Watch(/*input=*/true, /*room=*/false).ok());
  EXPECT_EQ(Ready(), std::set<int>{first()});
}

TEST_F(TcpSocketsTest, AnEndedStreamWithNothingToDeliverIsNotReportedAgain) {
  const Fd other = AddStream();
  Fd peer = AddStream();
  const int stream = sockets_.streams().fd(1);
  EXPECT_EQ(shared_.watched.count(stream), 1u);
  SendByte(other);
  EXPECT_TRUE(Ready().empty()) << "no slice is expected on the streams";
  // A reset is reported whatever the registered events are.
  const linger none{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
  peer.Reset();
  EXPECT_EQ(Ready(), std::set<int>{stream});
  sockets_.DropEndedStream(stream);
  EXPECT_TRUE(Ready().empty());
  ASSERT_TRUE(sockets_.Watch(/*input=*/true, /*room=*/false).ok());
  EXPECT_TRUE(Ready().empty());
}

TEST_F(TcpSocketsTest, CloseForgetsEverySocket) {
  Fd peer = AddStream();
  sockets_.Close();
  EXPECT_FALSE(sockets_.open());
  EXPECT_TRUE(shared_.watched.empty());
  char byte = 0;
  for (const Fd* end : {&peer_first_, &peer_line_, &peer}) {
    EXPECT_EQ(recv(end->get(), &byte, 1, 0), 0);
  }
}

TEST_F(TcpSocketsTest, ThePeerSeesAResetOnlyWhenAsked) {
  sockets_.ResetWhenClosed();
  sockets_.Close();
  char byte = 0;
  EXPECT_EQ(recv(peer_first_.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(TcpSocketsTest, EndOfSendingDropsUnreadBytesSoThatNothingIsReset) {
  const Fd peer = AddStream();
  SendByte(peer_first_);
  SendByte(peer);
  sockets_.EndSendingAll();
  sockets_.Close();
  char byte = 0;
  EXPECT_EQ(recv(peer_first_.get(), &byte, 1, 0), 0);
  EXPECT_EQ(recv(peer.get(), &byte, 1, 0), 0);
}

TEST_F(TcpSocketsTest, OnOneHostNoRoundTripIsMeasured) {
  EXPECT_TRUE(sockets_.one_host());
  EXPECT_EQ(sockets_.round_trip_ns(), 0);
}

}  // namespace
}  // namespace entrain
