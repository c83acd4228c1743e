// A host that vanishes is noticed in time, whatever the path is doing. A stopped process is not
// mistaken for a vanished host.
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/namespaces.h"
#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr absl::string_view kKeepAlive = "1s/1s";
// The time of that keep-alive: the silence, and the time until it is checked.
constexpr int64_t kLimit = 2 * kSecond;
constexpr int64_t kLarge = 64 << 20;

std::unique_ptr<Node> MakePeer(int index, const std::string& interface) {
  auto node = std::make_unique<Node>();
  node->config.self.fill(static_cast<uint8_t>(index));
  node->config.host_id = absl::StrCat("host ", index);
  node->config.interface_filter = interface;
  node->config.security = Security("a key of both hosts");
  node->config.keep_alive = std::string(kKeepAlive);
  MakeTransport("tcp", *node);
  return node;
}

// Memory in which the two processes tell each other their state.
struct Shared {
  std::atomic<int> published{0};
  char addresses[2][256];
  std::atomic<int> received{0};  // large messages that the child has received
  std::atomic<bool> lost{false};
};

class TcpHost : public testing::Test {
 protected:
  TcpHost()
      : shared(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~TcpHost() override {
    if (child > 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    if (path != nullptr) {
      path->Close(absl::AbortedError("end of test"));
    }
    path.reset();
    node.reset();
    munmap(shared, sizeof(Shared));
  }

  // Gives both processes a path to the other. `hosts` null: both processes are on this host.
  void Start(const TwoHosts* hosts) {
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Child(hosts);
    }
    if (hosts != nullptr) {
      std::thread([&] {  // only this thread moves to the other host
        ASSERT_TRUE(hosts->Enter(0));
        Meet(0, TwoHosts::AddressOf(0));
      })
          .join();
    } else {
      Meet(0, "127.0.0.1");
    }
    ASSERT_TRUE(Drive([&] { return !node->events.controls.empty(); }, 20 * kSecond));
  }

  void Meet(int index, const std::string& address) {
    node = MakePeer(index + 1, absl::StrCat(address, "/32"));
    ASSERT_NE(node->transport, nullptr);
    std::strncpy(shared->addresses[index], node->transport->address().c_str(),
                 sizeof(shared->addresses[0]) - 1);
    shared->published.fetch_add(1);
    while (shared->published.load() < 2) {
      std::this_thread::yield();
    }
    PeerId other;
    other.fill(static_cast<uint8_t>(2 - index));
    path = node->transport->Connect(other, shared->addresses[1 - index]).value();
    path->SendControl("here");
  }

  // Receives large messages. Also posts a receive of a tag that no side sends.
  [[noreturn]] void Child(const TwoHosts* hosts) {
    if (hosts != nullptr && !hosts->Enter(1)) {
      _exit(1);
    }
    Meet(1, hosts != nullptr ? TwoHosts::AddressOf(1) : "127.0.0.1");
    Buffer in(static_cast<size_t>(kLarge));
    while (true) {
      Transfer receive;
      path->PostRecv(Message(1), Of(in), &receive);
      while (receive.times == 0) {
        if (node->transport->Poll() == 0) {
          SleepOn(*node->transport, 1000);
        }
        shared->lost.store(!node->events.lost.empty());
      }
      if (!receive.status.ok()) {
        pause();
      }
      shared->received.fetch_add(1);
    }
  }

  bool Drive(const std::function<bool()>& condition, int64_t ns) {
    const Deadline deadline = Deadline::After(ns);
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      if (node->transport->Poll() == 0) {
        SleepOn(*node->transport, 20);
      }
    }
    return condition();
  }
  void ExpectLostInTime() {
    const int64_t began = Clock::Real().Now();
    ASSERT_TRUE(Drive([&] { return !node->events.lost.empty(); }, 30 * kSecond));
    EXPECT_LT(Clock::Real().Now() - began, kLimit + 3 * kSecond);
    EXPECT_THAT(std::string(node->events.lost[0].message()), HasSubstr("host has vanished"));
    // The other side notices this, too.
    EXPECT_TRUE(Drive([&] { return shared->lost.load(); }, kLimit + 3 * kSecond));
  }

  Shared* const shared;
  pid_t child = -1;
  std::unique_ptr<Node> node;
  std::unique_ptr<Endpoint> path;
};

#define MAKE_TWO_HOSTS(hosts)                     \
  const TwoHosts hosts;                           \
  if (!hosts.made()) {                            \
    GTEST_SKIP() << "no network namespaces here"; \
  }

TEST_F(TcpHost, ThatVanishesWhileNothingIsSaidIsNoticed) {
  MAKE_TWO_HOSTS(hosts);
  Start(&hosts);
  ASSERT_TRUE(hosts.Unplug(1));
  ExpectLostInTime();
}

TEST_F(TcpHost, ThatVanishesInTheMiddleOfATransferIsNoticed) {
  MAKE_TWO_HOSTS(hosts);
  Start(&hosts);
  const Buffer out(static_cast<size_t>(kLarge));
  std::array<Transfer, 100> sends;
  for (Transfer& send : sends) {
    path->PostSend(Message(1), Of(out), &send);
  }
  ASSERT_TRUE(Drive([&] { return shared->received.load() > 0; }, 20 * kSecond));
  ASSERT_TRUE(hosts.Unplug(1));
  ExpectLostInTime();
  EXPECT_FALSE(sends.back().status.ok());
}

// The peer's window is full, so bytes to it stay unacknowledged while its host is there. Then the
// host vanishes.
TEST_F(TcpHost, ThatVanishesWhileItsProcessIsStoppedIsNoticed) {
  MAKE_TWO_HOSTS(hosts);
  Start(&hosts);
  kill(child, SIGSTOP);
  const Buffer out(static_cast<size_t>(kLarge));
  Transfer send;
  path->PostSend(Message(1), Of(out), &send);
  Drive([&] { return !node->events.lost.empty(); }, 2 * kLimit);
  ASSERT_TRUE(node->events.lost.empty()) << node->events.lost[0];
  ASSERT_TRUE(hosts.Unplug(1));
  kill(child, SIGCONT);
  ExpectLostInTime();
}

TEST_F(TcpHost, IsNotGoneBecauseItsProcessIsStopped) {
  Start(nullptr);
  const Buffer out(static_cast<size_t>(kLarge));
  Transfer sends[2];
  path->PostSend(Message(1), Of(out), &sends[0]);
  ASSERT_TRUE(
      Drive([&] { return sends[0].bytes > 0 || shared->received.load() > 0; }, 20 * kSecond));
  kill(child, SIGSTOP);
  path->PostSend(Message(1), Of(out), &sends[1]);
  path->SendControl("something");
  path->SendUrgent("something");
  // The data connection's window stays shut for several times the limit.
  Drive([&] { return !node->events.lost.empty(); }, 3 * kLimit);
  EXPECT_TRUE(node->events.lost.empty()) << node->events.lost[0];
  kill(child, SIGCONT);
  EXPECT_TRUE(Drive([&] { return shared->received.load() == 2; }, 20 * kSecond));
  EXPECT_TRUE(node->events.lost.empty());
  EXPECT_FALSE(shared->lost.load());
}

}  // namespace
}  // namespace entrain
