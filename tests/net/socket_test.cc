#include "lib/net/socket.h"

#include <atomic>
#include <cerrno>
#include <future>
#include <string>
#include <thread>

#include <fcntl.h>
#include <poll.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/net/listener.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

Stop Soon() {
  return {Deadline::After(10 * kSecond), nullptr};
}

Address Loopback() {
  return *Address::FromHost("127.0.0.1", 0);
}

TEST(Address, PrintsWhatItParses) {
  for (const char* text : {"127.0.0.1:80", "0.0.0.0:0", "[::1]:65535", "[fd00::12]:1"}) {
    const auto address = Address::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_TRUE(Address::Parse("[::1]:1")->IsLoopback());
  EXPECT_TRUE(Address::Parse("127.9.9.9:1")->IsLoopback());
  EXPECT_TRUE(Address::Parse("[::]:1")->IsAny());
  EXPECT_TRUE(Address::Parse("169.254.1.2:1")->IsLinkLocal());
  EXPECT_FALSE(Address::Parse("10.0.0.1:1")->IsLoopback());
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* text :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", ":80", "::1:80", "[::1]",
        "[::1:80", "1.2.3.4.5:80", "a b:80", "127.0.0.1:8x"}) {
    const auto address = Address::Parse(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(HostPort, KeepsNamesAndBrackets) {
  EXPECT_EQ(ParseHostPort("host.example:4711")->ToString(), "host.example:4711");
  EXPECT_EQ(ParseHostPort("[::1]:4711")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:4711")->ToString(), "[::1]:4711");
}

TEST(Resolve, FindsLocalhost) {
  const auto found = Resolve({"localhost", 80}, Soon());
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->empty());
  EXPECT_TRUE(found->front().IsLoopback());
  EXPECT_EQ(found->front().port(), 80);
}

TEST(Resolve, NamesTheUnknownHost) {
  const auto found = Resolve({"no-such-host.invalid", 80}, Soon());
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("no-such-host.invalid"));
}

TEST(Listen, PortInUseIsNamed) {
  const auto first = OpenListener(Loopback(), {});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_NE(first->address.port(), 0);
  const uint16_t port = first->address.port();
  const auto second = OpenListener(Loopback(), {port, port});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address.ToString()));
}

TEST(Listen, TakesTheNextFreePortOfTheRange) {
  // Needs two neighbouring ports of which the first is taken. The machine determines which ports
  // are free.
  for (int attempt = 0; attempt < 50; ++attempt) {
    const auto taken = OpenListener(Loopback(), {});
    ASSERT_TRUE(taken.ok());
    const uint16_t low = taken->address.port();
    if (low == 65535) {
      continue;
    }
    const auto next = OpenListener(Loopback(), {low, static_cast<uint16_t>(low + 1)});
    if (next.ok()) {
      EXPECT_EQ(next->address.port(), low + 1);
      const auto none = OpenListener(Loopback(), {low, static_cast<uint16_t>(low + 1)});
      EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(none.status().message()), HasSubstr(std::to_string(low)));
      return;
    }
  }
  FAIL() << "found no two neighbouring ports in 50 attempts";
}

TEST(ParsePorts, AcceptsRangesOnly) {
  EXPECT_EQ(ParsePorts("")->low, 0);
  EXPECT_EQ(ParsePorts("4000-4010")->high, 4010);
  EXPECT_EQ(ParsePorts("4000")->low, 4000);
  for (const char* text : {"x", "0-5", "5-4", "1-65536", "1-", "-1", "1-2-3", "+1-2", " 1-2"}) {
    EXPECT_FALSE(ParsePorts(text).ok()) << text;
  }
}

struct Connected {
  Fd client, server;
};
Connected MakeConnection() {
  auto listener = OpenListener(Loopback(), {});
  EXPECT_TRUE(listener.ok());
  auto client = Connect(listener->address, Soon());
  EXPECT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(WaitFd(listener->fd.get(), POLLIN, Soon(), "accepting").ok());
  auto server = Accept(listener->fd.get());
  EXPECT_TRUE(server.ok() && server->valid());
  return {*std::move(client), *std::move(server)};
}

TEST(Socket, MovesMoreThanItsBuffersHold) {
  const Connected ends = MakeConnection();
  std::string sent(8 << 20, '\0');
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<char>(i * 131);
  }
  auto writing = std::async(std::launch::async, [&] {
    return WriteFull(ends.client.get(), sent.data(), sent.size(), Soon());
  });
  std::string got(sent.size(), '\0');
  EXPECT_TRUE(ReadFull(ends.server.get(), got.data(), got.size(), Soon()).ok());
  EXPECT_TRUE(writing.get().ok());
  EXPECT_EQ(got, sent);
}

TEST(Socket, DescriptorsCloseOnExec) {
  const Connected ends = MakeConnection();
  EXPECT_NE(fcntl(ends.client.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(ends.server.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Socket, EndOfTheOtherSideIsUnavailable) {
  Connected ends = MakeConnection();
  ends.server.Reset();
  char byte = 0;
  EXPECT_EQ(ReadFull(ends.client.get(), &byte, 1, Soon()).code(), absl::StatusCode::kUnavailable);
  // A write to the closed socket ends too, by an error and not by a signal.
  absl::Status status;
  const std::string block(1 << 16, 'x');
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = WriteFull(ends.client.get(), block.data(), block.size(), Soon());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(Socket, ReadingEndsByTheDeadline) {
  const Connected ends = MakeConnection();
  char byte = 0;
  const int64_t start = Clock::Real().Now();
  const absl::Status status =
      ReadFull(ends.client.get(), &byte, 1, {Deadline::After(40 * kMillisecond), nullptr});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(Clock::Real().Now() - start, 40 * kMillisecond);
}

TEST(Socket, ReadingEndsSoonAfterTheFlag) {
  const Connected ends = MakeConnection();
  std::atomic<bool> cancelled{false};
  auto reading = std::async(std::launch::async, [&] {
    char byte = 0;
    const absl::Status status =
        ReadFull(ends.client.get(), &byte, 1, {Deadline::Never(), &cancelled});
    return std::make_pair(status, Clock::Real().Now());
  });
  const int64_t start = Clock::Real().Now();
  cancelled = true;
  const auto [status, end] = reading.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_LT(end - start, kSecond);  // 20 ms, and the machine's load
}

TEST(Connect, RefusalIsUnavailableAndNamed) {
  Address gone;
  {
    const auto listener = OpenListener(Loopback(), {});
    gone = listener->address;
  }
  const auto fd = Connect(gone, Soon());
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr(gone.ToString()));
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("refused"));
}

TEST(Accept, GivesNothingWhenNobodyWaits) {
  const auto listener = OpenListener(Loopback(), {});
  const auto fd = Accept(listener->fd.get());
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_FALSE(fd->valid());
}

TEST(Fd, MovesAndCloses) {
  const auto listener = OpenListener(Loopback(), {});
  Fd copy(dup(listener->fd.get()));
  const int number = copy.get();
  Fd moved = std::move(copy);
  EXPECT_FALSE(copy.valid());  // NOLINT: the test is about moved-from descriptors
  EXPECT_EQ(moved.get(), number);
  moved.Reset();
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace entrain
