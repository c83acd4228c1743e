// The options that a path over tcp sets on its sockets.
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/tcp/control_line.h"

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

}  // namespace
}  // namespace entrain
