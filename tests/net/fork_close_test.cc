#include "lib/net/fork_close.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "lib/net/listener.h"
#include "lib/net/local_socket.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

constexpr int kMostDescriptors = 256;

bool IsSocket(int fd) {
  struct stat of {};
  return fstat(fd, &of) == 0 && S_ISSOCK(of.st_mode);
}

// Returns the result of `body` (0 to 255) in a child.
template <typename Body>
int InChild(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    _exit(body());
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int CountSockets() {
  int count = 0;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    count += IsSocket(fd) ? 1 : 0;
  }
  return count;
}

struct Pair {
  Listener listener;
  Fd dialled, accepted;
};

Pair Connected() {
  Pair pair;
  pair.listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
  const Stop stop{Deadline::After(5 * kSecond)};
  pair.dialled = Connect(pair.listener.address, stop).value();
  while (!pair.accepted.valid()) {
    pair.accepted = Accept(pair.listener.fd.get()).value();
  }
  return pair;
}

TEST(ForkClose, AChildHasNoneOfTheSocketsAndTheConnectionsGoOn) {
  const int before = CountSockets();
  Pair pair = Connected();
  const Fd local = LocalSocket().value();
  EXPECT_EQ(CountSockets(), before + 4);
  EXPECT_EQ(InChild([] { return CountSockets(); }), before);
  EXPECT_EQ(WriteSome(pair.dialled.get(), "x", 1).value(), 1u);
  char byte = 0;
  EXPECT_TRUE(ReadFull(pair.accepted.get(), &byte, 1, {Deadline::After(5 * kSecond)}).ok());
}

TEST(ForkClose, TheEndOfAConnectionIsSeenWhileAChildLives) {
  Pair pair = Connected();
  int until[2];
  ASSERT_EQ(pipe(until), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(until[1]);
    char byte;
    _exit(read(until[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes it
  }
  pair.dialled.Reset();
  char byte = 0;
  const absl::Status end = ReadFull(pair.accepted.get(), &byte, 1, {Deadline::After(5 * kSecond)});
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  close(until[0]);
  close(until[1]);
  waitpid(child, nullptr, 0);
}

// The number of a descriptor that the library has closed may belong to another descriptor now.
TEST(ForkClose, WhatIsNotTheLibrarysIsLeftOpenInTheChild) {
  const int number = [] {
    const Fd fd = LocalSocket().value();
    return fd.get();
  }();
  const int others = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(others, number);
  EXPECT_EQ(InChild([&] { return IsSocket(others) ? 1 : 0; }), 1);
  close(others);
}

TEST(ForkClose, AForkInTheMiddleOfOpeningAndClosingLeavesNothing) {
  const int before = CountSockets();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const Fd first = LocalSocket().value();
        Fd second = LocalSocket().value();
        second.Reset();
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(InChild([] { return CountSockets(); }), before) << "child " << i;
  }
  stop.store(true);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Closes a socket that lingers. It stands for a file on a disk that does not answer.
TEST(ForkClose, ACloseThatWaitsHoldsUpNobody) {
  Pair pair = Connected();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // not noted
  const Address to = pair.listener.address;
  ASSERT_EQ(connect(fd, to.raw(), to.raw_bytes()), 0);
  Fd reader;
  while (!reader.valid()) {
    reader = Accept(pair.listener.fd.get()).value();
  }
  const std::string bytes(1 << 16, 'x');
  while (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  const linger long_one = {1, 30};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &long_one, sizeof(long_one)), 0);
  const int64_t began = Clock::Real().Now();
  std::thread closes([fd] { CloseFd(fd); });
  while (fcntl(fd, F_GETFD) >= 0) {  // the number goes first
  }
  LocalSocket().value().Reset();
  EXPECT_LT(Clock::Real().Now() - began, 15 * kSecond);
  reader.Reset();
  closes.join();
}

}  // namespace
}  // namespace entrain
