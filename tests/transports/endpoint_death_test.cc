// Invariant 8: the killing of a process is noticed by its peer, polling or asleep, idle or in the
// middle of a transfer.
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

constexpr size_t kAddressBytes = 1024;
constexpr size_t kLastWords = 5;

// Addresses travel between processes in records of a fixed size.
void Tell(int fd, const std::string& address) {
  char record[kAddressBytes] = {};
  std::memcpy(record, address.data(), std::min(address.size(), kAddressBytes - 1));
  ASSERT_EQ(write(fd, record, kAddressBytes), static_cast<ssize_t>(kAddressBytes));
}
std::string Hear(int fd) {
  char record[kAddressBytes] = {};
  return read(fd, record, kAddressBytes) == static_cast<ssize_t>(kAddressBytes) ? record : "";
}

// The child, until it is killed: it takes part in the traffic, or only sleeps. When it is told
// anything, it says its last words and ends without a goodbye. `orphan`: if this is a pipe, the
// child forks a process that lives until the pipe is closed.
[[noreturn]] void Child(const std::string& name, uint8_t index, int in, int out, int64_t bytes,
                        int orphan) {
  const std::unique_ptr<Node> node = MakeNode(name, index);
  Tell(out, node->transport->address());
  PeerId other;
  other.fill(static_cast<uint8_t>(3 - index));
  const std::unique_ptr<Endpoint> path = node->transport->Connect(other, Hear(in)).value();
  Buffer buffer(static_cast<size_t>(bytes));
  Transfer transfers[2];
  path->PostSend(Message(1), Of(std::as_const(buffer)), &transfers[0]);
  path->PostRecv(Message(2), Of(buffer), &transfers[1]);
  path->SendControl("ready");
  if (orphan >= 0 && fork() == 0) {
    char byte;
    _exit(read(orphan, &byte, 1) == 0 ? 0 : 1);
  }
  while (node->events.controls.empty()) {
    if (node->transport->Poll() == 0) {
      SleepOn(*node->transport, 1000);
    }
  }
  // The child reads nothing that arrives during this time.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (size_t i = 0; i < kLastWords; ++i) {
    path->SendControl(absl::StrCat("word ", i));
  }
  for (int polls = 0; polls < 2; ++polls) {
    node->transport->Poll();
  }
  _exit(0);
}

class EndpointDeath : public testing::TestWithParam<std::string> {
 protected:
  // Starts the other process. The node of this process is `node`, and its path to the other is
  // `path`.
  void Start(uint8_t child_index, int64_t bytes, bool forks = false) {
    int to_child[2], from_child[2], orphan[2] = {-1, -1};
    ASSERT_EQ(pipe(to_child) + pipe(from_child) + (forks ? pipe(orphan) : 0), 0);
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(to_child[1]);
      close(from_child[0]);
      close(orphan[1]);
      Child(GetParam(), child_index, to_child[0], from_child[1], bytes, orphan[0]);
    }
    close(orphan[0]);
    orphan_life = Fd(orphan[1]);
    close(to_child[0]);
    close(from_child[1]);
    node = MakeNode(GetParam(), static_cast<uint8_t>(3 - child_index));
    Tell(to_child[1], node->transport->address());
    PeerId peer;
    peer.fill(child_index);
    path = node->transport->Connect(peer, Hear(from_child[0])).value();
    close(to_child[1]);
    close(from_child[0]);
    ASSERT_TRUE(Drive([&] { return !node->events.controls.empty(); }, 20, false));
  }

  void Kill() {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = -1;
  }

  bool Drive(const std::function<bool()>& condition, double seconds, bool sleep) {
    const Deadline deadline = Deadline::After(static_cast<int64_t>(seconds * kSecond));
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      if (node->transport->Poll() == 0 && sleep) {
        SleepOn(*node->transport, 5000);  // longer than the bound: only an event ends it in time
      }
    }
    return condition();
  }

  void TearDown() override {
    if (child > 0) {
      Kill();
    }
    if (path != nullptr) {
      path->Close(absl::AbortedError("end of test"));
    }
  }

  // Kills the child and expects that all transfers fail within a second.
  void ExpectNoticed(bool sleep, const Transfer& receive, const Transfer& send) {
    const int64_t killed = Clock::Real().Now();
    Kill();
    ASSERT_TRUE(
        Drive([&] { return !node->events.lost.empty() && receive.times > 0 && send.times > 0; }, 5,
              sleep));
    EXPECT_LT(Clock::Real().Now() - killed, kSecond);
    EXPECT_EQ(node->events.lost.size(), 1u);
    EXPECT_EQ(node->events.lost[0].code(), absl::StatusCode::kUnavailable) << node->events.lost[0];
    EXPECT_EQ(receive.times, 1);
    EXPECT_EQ(send.times, 1);
    EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable) << receive.status;
  }

  pid_t child = -1;
  Fd orphan_life;
  std::unique_ptr<Node> node;
  std::unique_ptr<Endpoint> path;
};

INSTANTIATE_TEST_SUITE_P(Processes, EndpointDeath, testing::ValuesIn(EveryTransportOfProcesses()),
                         [](const auto& test) { return test.param; });

TEST_P(EndpointDeath, Invariant8_AKilledPeerIsNoticedWhilePolling) {
  Start(2, 100);
  Transfer receive, send;
  Buffer in(100);
  path->PostRecv(Message(7), Of(in), &receive);
  const Buffer out = Pattern(8 << 20, 1);
  path->PostSend(Message(8), Of(out), &send);
  ExpectNoticed(/*sleep=*/false, receive, send);
}

TEST_P(EndpointDeath, Invariant8_AKilledPeerIsNoticedByASleeperWithoutAnythingPosted) {
  Start(1, 100);
  ASSERT_TRUE(Drive([&] { return true; }, 1, false));
  const int64_t killed = Clock::Real().Now();
  Kill();
  ASSERT_TRUE(Drive([&] { return !node->events.lost.empty(); }, 5, true));
  EXPECT_LT(Clock::Real().Now() - killed, kSecond);
}

// The process is dead, but still in the table of processes.
TEST_P(EndpointDeath, Invariant8_AKilledPeerThatNobodyWaitedForIsNoticed) {
  for (const bool sleep : {false, true}) {
    Start(1, 100);
    const int64_t killed = Clock::Real().Now();
    kill(child, SIGKILL);
    EXPECT_TRUE(Drive([&] { return !node->events.lost.empty(); }, 5, sleep));
    EXPECT_LT(Clock::Real().Now() - killed, kSecond);
    TearDown();
    path.reset();
    node.reset();
  }
}

// PyTorch's DataLoader forks its workers. They live on with all descriptors that they have
// inherited.
TEST_P(EndpointDeath, Invariant8_AKilledPeerThatHadForkedIsNoticed) {
  for (const int index : {1, 2}) {
    Start(static_cast<uint8_t>(index), 100, /*forks=*/true);
    const int64_t killed = Clock::Real().Now();
    Kill();
    EXPECT_TRUE(Drive([&] { return !node->events.lost.empty(); }, 5, true));
    EXPECT_LT(Clock::Real().Now() - killed, kSecond);
    TearDown();
    path.reset();
    node.reset();
  }
}

// A rank that has learned of a failure tells the others, and then its process may end. A rank that
// was away meanwhile must hear of the failure, and not take the one who told it for the culprit.
TEST_P(EndpointDeath, WhatAPeerSaidBeforeItsEndIsHeardFirst) {
  Start(1, 100);
  path->SendControl("go");
  const Buffer out = Pattern(32 << 10, 1);
  std::vector<Transfer> sends(60);
  for (Transfer& send : sends) {
    path->PostSend(Message(8), Of(out), &send);
  }
  const Deadline sent = Deadline::After(100 * kMillisecond);
  while (!sent.Passed(Clock::Real().Now())) {
    node->transport->Poll();
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  child = -1;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // the check of UCX is due by then
  Transfer late;
  path->PostSend(Message(8), Of(out), &late);
  ASSERT_TRUE(Drive([&] { return !node->events.lost.empty(); }, 5, false));
  EXPECT_EQ(node->events.controls.size(), 1 + kLastWords);
  EXPECT_EQ(node->events.controls.back(), absl::StrCat("word ", kLastWords - 1));
  path->Close(absl::AbortedError("end of test"));
  path.reset();
  node.reset();  // before the transfers
}

TEST_P(EndpointDeath, Invariant8_AKilledPeerIsNoticedInTheMiddleOfLargeTransfers) {
  constexpr int64_t kBytes = 64 << 20;
  for (const int after : {0, 1, 5, 20, 60}) {
    SCOPED_TRACE(absl::StrCat(after, " polls before the child dies"));
    Start(after % 2 == 0 ? 1 : 2, kBytes);
    Buffer in(kBytes);
    const Buffer out(kBytes);
    Transfer receive, send, never;
    path->PostRecv(Message(1), Of(in), &receive);
    path->PostSend(Message(2), Of(out), &send);
    path->PostRecv(Message(7), Of(in), &never);
    for (int i = 0; i < after; ++i) {
      node->transport->Poll();
    }
    const int64_t killed = Clock::Real().Now();
    Kill();
    ASSERT_TRUE(Drive([&] { return !node->events.lost.empty() && never.times > 0; }, 5, true));
    EXPECT_LT(Clock::Real().Now() - killed, kSecond);
    EXPECT_EQ(receive.times + send.times + never.times, 3);
    path->Close(absl::AbortedError("next"));
    path.reset();
    node.reset();
  }
}

}  // namespace
}  // namespace entrain
