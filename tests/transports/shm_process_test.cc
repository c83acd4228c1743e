// The shm transport between real processes: tests that one process cannot make.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/forbid_reading.h"
#include "tests/support/transfer.h"
#include "transports/shm/shm_transport.h"

namespace entrain {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
using Buffer = std::vector<uint8_t>;

Envelope Message(uint32_t tag, Context context = 1) {
  return {Tag(context, tag, 0, 0), {.kind = CallKind::kSend, .count = 1}};
}
Bytes Of(Buffer& buffer) {
  return {reinterpret_cast<std::byte*>(buffer.data()), buffer.size()};
}
Buffer Pattern(int64_t bytes, uint32_t seed) {
  Buffer buffer(static_cast<size_t>(bytes));
  for (size_t i = 0; i < buffer.size(); ++i) {
    buffer[i] = static_cast<uint8_t>((i * 131 + seed * 17) ^ (i >> 12));
  }
  return buffer;
}

// One process's side of a pair.
struct Rank final : Events {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Endpoint> path;
  std::vector<std::unique_ptr<Endpoint>> dead;  // to former peers
  std::vector<std::string> controls;
  std::vector<absl::Status> lost;

  bool Accepts(Context) override { return true; }
  void OnEarly(Endpoint&, const Envelope&) override {}
  void OnControl(Endpoint&, absl::string_view text) override { controls.emplace_back(text); }
  void OnLost(Endpoint&, const absl::Status& why) override { lost.push_back(why); }

  ~Rank() override {
    if (path != nullptr) {
      path->Close(absl::AbortedError("end of test"));
      transport->Poll();
    }
  }
  // Exchanges addresses over `socket` and connects. `first` has the smaller id, the other process
  // has the id `other`.
  bool Join(int socket, bool first, const shm::Options& options, uint8_t other = 2) {
    TransportConfig config;
    config.self.fill(first ? 1 : other);
    config.host_id = "this/host";
    if (transport == nullptr) {
      auto made = shm::CreateTransport(config, this, options);
      if (!made.ok()) {
        return false;
      }
      transport = *std::move(made);
    }
    const std::string mine = transport->address();
    char theirs[1024];
    if (send(socket, mine.data(), mine.size(), 0) < 0) {
      return false;
    }
    const ssize_t got = recv(socket, theirs, sizeof(theirs), 0);
    PeerId peer;
    peer.fill(first ? other : 1);
    auto joined =
        transport->Connect(peer, absl::string_view(theirs, got > 0 ? static_cast<size_t>(got) : 0));
    path = joined.ok() ? *std::move(joined) : nullptr;
    return path != nullptr;
  }
  bool PollUntil(const std::function<bool()>& condition, int64_t ns = 20 * kSecond) {
    const Deadline deadline = Deadline::After(ns);
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      transport->Poll();
    }
    return condition();
  }
  bool Hear(absl::string_view text) {
    return PollUntil(
               [&] { return !lost.empty() || (!controls.empty() && controls.back() == text); }) &&
           lost.empty();
  }
};

// The other process of a test. `body` runs there and returns whether it succeeded.
class Child {
 public:
  explicit Child(const std::function<bool(int socket)>& body) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(pair[0]);
      _exit(body(pair[1]) ? 0 : 1);
    }
    close(pair[1]);
    socket_ = pair[0];
  }
  ~Child() {
    Kill();
    close(socket_);
  }
  int socket() const { return socket_; }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }
  // Waits until it ends by itself.
  bool EndedWell() {
    int status = 1;
    const Deadline deadline = Deadline::After(20 * kSecond);
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (deadline.Passed(Clock::Real().Now())) {
        return false;
      }
      poll(nullptr, 0, 1);
    }
    pid_ = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
  int socket_ = -1;
};

constexpr int64_t kSizes[] = {0,         1,      64,         8 * kKiB,       8 * kKiB + 1,
                              32 * kKiB, 100000, 256 * kKiB, 256 * kKiB + 3, 2 * kMiB + 1};

// Both sides send and receive all sizes at once and check the bytes.
bool ExchangeAll(Rank& rank, uint32_t mine, uint32_t theirs) {
  std::deque<Buffer> outs, ins;
  std::deque<Transfer> transfers;
  for (uint32_t i = 0; i < std::size(kSizes); ++i) {
    outs.push_back(Pattern(kSizes[i], mine + i));
    ins.emplace_back(outs.back().size());
    rank.path->PostSend(Message(i), Of(outs.back()), &transfers.emplace_back());
    rank.path->PostRecv(Message(i), Of(ins.back()), &transfers.emplace_back());
  }
  const bool done = rank.PollUntil([&] {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const Transfer& t) { return t.times == 1; });
  });
  for (uint32_t i = 0; i < std::size(kSizes); ++i) {
    if (ins[i] != Pattern(kSizes[i], theirs + i)) {
      return false;
    }
  }
  return done && rank.lost.empty();
}

struct Way {
  const char* name;
  bool forbid_before, forbid_after;  // in the child: before or after connecting
  bool pull;                         // the option, on both sides
  size_t ring_bytes;
  int cores = 8;                          // the number of usable cores to assume
  shm::Reads reads = shm::Reads::kQuick;  // Limits::reads
};

class ShmWays : public testing::TestWithParam<Way> {
 protected:
  static shm::Options OptionsOf(const Way& way) {
    shm::Options options;
    options.pull = way.pull;
    options.limits.ring_bytes = way.ring_bytes;
    options.limits.reads = way.reads;
    options.cpus = CpuSet::First(way.cores);
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Every, ShmWays,
    testing::Values(Way{"pull", false, false, true, 512 << 10},
                    Way{"push", false, false, false, 512 << 10},
                    Way{"push_small_ring", false, false, false, 32 << 10},
                    Way{"one_forbidden", true, false, true, 512 << 10},
                    Way{"forbidden_later", false, true, true, 128 << 10},
                    Way{"on_one_core", false, false, true, 512 << 10, 1},
                    Way{"fair_reads", false, false, true, 512 << 10, 8, shm::Reads::kFair},
                    Way{"slow_reads", false, false, true, 512 << 10, 8, shm::Reads::kSlow},
                    Way{"slow_reads_on_one_core", false, false, true, 512 << 10, 1,
                        shm::Reads::kSlow}),
    [](const auto& test) { return test.param.name; });

TEST_P(ShmWays, TwoProcessesExchangeEverySize) {
  const Way& way = GetParam();
  const shm::Options options = OptionsOf(way);
  Child child([&](int socket) {
    if (way.forbid_before) {
      ForbidReading();
    }
    Rank rank;
    bool good = rank.Join(socket, false, options);
    good = good && rank.Hear("connected");
    if (way.forbid_after) {
      ForbidReading();
    }
    for (int i = 0; i < 3; ++i) {
      good = good && ExchangeAll(rank, 100, 500);
    }
    rank.path->SendControl("bye");
    rank.Hear("bye");
    return good;
  });
  Rank rank;
  ASSERT_TRUE(rank.Join(child.socket(), true, options));
  rank.path->SendControl("connected");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ExchangeAll(rank, 500, 100)) << testing::PrintToString(rank.lost);
  }
  EXPECT_TRUE(rank.Hear("bye"));
  rank.path->SendControl("bye");
  rank.PollUntil([&] { return !rank.lost.empty(); });
  EXPECT_TRUE(child.EndedWell());
}

// Passes long messages, one at a time.
TEST_P(ShmWays, TwoProcessesPassOneLongMessageToAndFro) {
  const Way& way = GetParam();
  const shm::Options options = OptionsOf(way);
  constexpr int64_t kBytes = 8 * kMiB + 5;
  constexpr uint32_t kTimes = 11;
  const auto pass = [&](Rank& rank, uint32_t turn) {
    for (uint32_t i = 0; i < kTimes; ++i) {
      Buffer buffer = i % 2 == turn ? Pattern(kBytes, i) : Buffer(static_cast<size_t>(kBytes));
      Transfer transfer;
      if (i % 2 == turn) {
        rank.path->PostSend(Message(i), Of(buffer), &transfer);
      } else {
        rank.path->PostRecv(Message(i), Of(buffer), &transfer);
      }
      if (!rank.PollUntil([&] { return transfer.times == 1; }) || !transfer.status.ok() ||
          buffer != Pattern(kBytes, i)) {
        return false;
      }
    }
    return true;
  };
  Child child([&](int socket) {
    if (way.forbid_before) {
      ForbidReading();
    }
    Rank rank;
    const bool good = rank.Join(socket, false, options) && pass(rank, 0);
    rank.path->SendControl("bye");
    return rank.Hear("bye") && good;
  });
  Rank rank;
  ASSERT_TRUE(rank.Join(child.socket(), true, options));
  EXPECT_TRUE(pass(rank, 1)) << testing::PrintToString(rank.lost);
  EXPECT_TRUE(rank.Hear("bye"));
  rank.path->SendControl("bye");
  rank.PollUntil([&] { return !rank.lost.empty(); });
  EXPECT_TRUE(child.EndedWell());
}

TEST_P(ShmWays, KillingTheSenderInTheMiddleFailsTheReceiveSoon) {
  const shm::Options options = OptionsOf(GetParam());
  for (int polls : {0, 1, 3, 10}) {  // a poll takes at most 2 MiB, so some bytes are left
    Child child([&](int socket) {
      Rank rank;
      Buffer out(32 * kMiB, 1);
      Transfer send;
      const bool good = rank.Join(socket, false, options);
      rank.path->PostSend(Message(1), Of(out), &send);
      rank.path->SendControl("sending");
      return good && rank.Hear("never");
    });
    Rank rank;
    Buffer in(32 * kMiB);
    Transfer receive;
    ASSERT_TRUE(rank.Join(child.socket(), true, options));
    ASSERT_TRUE(rank.Hear("sending"));
    rank.path->PostRecv(Message(1), Of(in), &receive);
    for (int i = 0; i < polls; ++i) {
      rank.transport->Poll();
    }
    ASSERT_EQ(receive.times, 0);
    child.Kill();
    const int64_t begin = Clock::Real().Now();
    ASSERT_TRUE(rank.PollUntil([&] { return receive.times > 0 && !rank.lost.empty(); }));
    EXPECT_LT(Clock::Real().Now() - begin, kSecond);
    EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable) << receive.status;
    EXPECT_THAT(std::string(rank.lost[0].message()), testing::HasSubstr("died"));
    EXPECT_EQ(rank.lost.size(), 1u);
  }
}

// A process that `shares` the peer's descriptors lives on after the peer's death, like a forked
// data loader.
void ExpectDeathIsNoticed(bool asleep, bool shares) {
  Child child([&](int socket) {
    Rank rank;
    const bool good = rank.Join(socket, false, {});
    rank.PollUntil([&] { return !rank.controls.empty(); });
    const pid_t loader = shares ? fork() : -1;
    if (loader == 0) {
      // The signal comes when the test's process has ended the peer. A second later it ends this.
      prctl(PR_SET_PDEATHSIG, SIGUSR1);
      signal(SIGUSR1, [](int) {
        poll(nullptr, 0, 1500);
        _exit(0);
      });
      poll(nullptr, 0, 10000);
      _exit(0);
    }
    rank.path->SendControl("ready");
    return good && rank.Hear("never");
  });
  Rank rank;
  ASSERT_TRUE(rank.Join(child.socket(), true, {}));
  rank.path->SendControl("connected");
  ASSERT_TRUE(rank.Hear("ready"));
  while (rank.transport->Poll() > 0) {
  }
  const bool armed = asleep && rank.transport->Arm();
  child.Kill();
  const int64_t begin = Clock::Real().Now();
  if (asleep) {
    ASSERT_TRUE(armed);
    pollfd wait{rank.transport->wait_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 1000), 1);
  }
  EXPECT_TRUE(rank.PollUntil([&] { return !rank.lost.empty(); }, kSecond));
  EXPECT_LT(Clock::Real().Now() - begin, kSecond);
}

TEST(ShmProcess, APollerNoticesDeathWithoutTraffic) {
  ExpectDeathIsNoticed(false, false);
}
TEST(ShmProcess, ASleeperNoticesDeathWithoutTraffic) {
  ExpectDeathIsNoticed(true, false);
}
TEST(ShmProcess, APollerNoticesDeathWhileAForkedChildLives) {
  ExpectDeathIsNoticed(false, true);
}
TEST(ShmProcess, ASleeperNoticesDeathWhileAForkedChildLives) {
  ExpectDeathIsNoticed(true, true);
}

TEST(ShmProcess, APeerThatDiesBeforeItConnectsIsLostSoon) {
  for (const bool first : {true, false}) {  // the parent connects, or waits for a connection
    Child child([&](int socket) {
      Rank rank;
      rank.Join(socket, !first, {});
      char nothing;
      return recv(socket, &nothing, 1, 0) == 1;
    });
    Rank rank;
    ASSERT_TRUE(rank.Join(child.socket(), first, {}));
    child.Kill();
    EXPECT_TRUE(rank.PollUntil([&] { return !rank.lost.empty(); }, kSecond)) << first;
  }
}

// Revokes messages that are read in many pieces, or come through a small ring.
void ExpectARevokedMessageFails(bool read) {
  constexpr int kRounds = 20;
  const int64_t bytes = read ? kMiB : 8 * kMiB;
  shm::Options options;
  options.limits.reads = read ? shm::Reads::kQuick : shm::Reads::kSlow;
  options.limits.piece_bytes = 4096;
  options.limits.ring_bytes = 32 << 10;
  Child child([&](int socket) {
    Rank rank;
    bool good = rank.Join(socket, false, options);
    for (int i = 0; i < kRounds && good; ++i) {
      const auto context = static_cast<Context>(10 + i);
      Buffer out(static_cast<size_t>(bytes), 0x11);
      Transfer send;
      rank.path->PostSend(Message(1, context), Of(out), &send);
      good = rank.Hear(absl::StrCat("revoke ", i));
      rank.path->Revoke(context, context, absl::AbortedError("revoked"));
      std::fill(out.begin(), out.end(), 0xDD);  // the buffer is ours again
      good = good && rank.PollUntil([&] { return send.times == 1; });
      rank.path->SendControl(absl::StrCat("revoked ", i));
    }
    return good && rank.Hear("bye");
  });
  Rank rank;
  ASSERT_TRUE(rank.Join(child.socket(), true, options));
  int failed = 0;
  for (int i = 0; i < kRounds; ++i) {
    Buffer in(static_cast<size_t>(bytes));
    Transfer receive;
    rank.path->PostRecv(Message(1, static_cast<Context>(10 + i)), Of(in), &receive);
    rank.PollUntil([&] { return in[0] == 0x11 || receive.times > 0; });  // the transfer has begun
    for (int polls = 0; polls < i; ++polls) {
      rank.transport->Poll();
    }
    rank.path->SendControl(absl::StrCat("revoke ", i));
    if (i % 2 == 0) {
      // The rest is read in less time than a sender on a busy machine needs to come back.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_TRUE(rank.PollUntil([&] { return receive.times > 0; }));
    failed += receive.status.ok() ? 0 : 1;
    if (receive.status.ok()) {
      ASSERT_TRUE(in == Buffer(in.size(), 0x11)) << i;
    } else {
      EXPECT_EQ(receive.status.code(), absl::StatusCode::kAborted) << receive.status;
    }
    ASSERT_TRUE(rank.Hear(absl::StrCat("revoked ", i)));
  }
  EXPECT_GT(failed, 0) << "no revocation came in the middle";
  rank.path->SendControl("bye");
  rank.PollUntil([&] { return !rank.lost.empty(); });
  EXPECT_TRUE(child.EndedWell());
}

TEST(ShmProcess, TheSenderRevokesWhileItsPeerIsPulling) {
  ExpectARevokedMessageFails(true);
}
TEST(ShmProcess, TheSenderRevokesWhileItsMessageComesThroughTheRing) {
  ExpectARevokedMessageFails(false);
}

std::set<std::string> Names(const char* folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

// Bytes of shared memory that this process has mapped and touched.
int64_t SharedBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssShmem:", 0) == 0) {
      return std::stoll(line.substr(9)) * kKiB;
    }
  }
  return -1;
}

// A process that outlives many peers keeps no descriptor and no memory of them.
TEST(ShmProcess, DeadPeersCostNothing) {
  Rank rank;
  std::ptrdiff_t descriptors = 0;
  int64_t bytes = 0;
  for (uint8_t peer = 2; peer < 12; ++peer) {
    {
      Child child([&](int socket) {
        Rank other;
        if (!other.Join(socket, false, {}, peer) || !ExchangeAll(other, 20, 10)) {
          return false;
        }
        raise(SIGKILL);
        return true;
      });
      ASSERT_TRUE(rank.Join(child.socket(), true, {}, peer));
      ASSERT_TRUE(ExchangeAll(rank, 10, 20));
      ASSERT_TRUE(rank.PollUntil([&] { return !rank.lost.empty(); }));
    }
    rank.lost.clear();
    rank.transport->Poll();
    rank.dead.push_back(std::move(rank.path));
    if (peer == 2) {
      descriptors = OpenDescriptors();
      bytes = SharedBytes();
    }
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_LE(SharedBytes(), bytes);
}

TEST(ShmProcess, NothingIsLeftBehind) {
  const std::set<std::string> shared = Names("/dev/shm"), descriptors = Names("/proc/self/fd");
  {
    Child child([&](int socket) {
      Rank rank;
      return rank.Join(socket, false, {}) && rank.Hear("never");
    });
    Rank rank;
    ASSERT_TRUE(rank.Join(child.socket(), true, {}));
    rank.path->SendControl("hello");
    for (int i = 0; i < 1000; ++i) {
      rank.transport->Poll();
    }
    EXPECT_EQ(Names("/dev/shm"), shared);
    child.Kill();
    EXPECT_TRUE(rank.PollUntil([&] { return !rank.lost.empty(); }));
  }
  EXPECT_EQ(Names("/dev/shm"), shared);
  EXPECT_EQ(Names("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace entrain
