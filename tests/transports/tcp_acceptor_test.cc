// The cost of strangers, and the harm that they cannot do to peers, counted in turns of the
// acceptor.
#include <algorithm>

#include <sys/resource.h>

#include "lib/net/socket.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/tcp/acceptor.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr PeerId kSelf{5}, kPeer{1};

struct Shared final : TcpShared {
  explicit Shared(Events* events) : TcpShared(events, TimedWait::Create().value()) {}
  void OnConnected(TcpEndpoint* endpoint, PathSockets sockets) override {
    connected.emplace_back(endpoint, std::move(sockets));
  }
  bool OnFurther(const PeerId&, const ConnectionId&, const ConnectionId&, Channel*) override {
    return false;
  }
  void DialStream(TcpEndpoint*) override {}
  void OnWatched(TcpEndpoint*, int) override {}
  void OnUnwatched(int) override {}
  void OnClosedEarly(TcpEndpoint*, const absl::Status&) override {}
  void OnDisconnected(TcpEndpoint*) override {}
  void OnDestroyed(TcpEndpoint*) override {}
  std::vector<std::pair<TcpEndpoint*, PathSockets>> connected;
};

class TcpAcceptor : public testing::Test {
 protected:
  void SetUp() override {
    rlimit most{};
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = std::min<rlim_t>(most.rlim_max, 8192);
    setrlimit(RLIMIT_NOFILE, &most);
    config.self = kSelf;
    config.clock = &clock;
    shared = std::make_unique<Shared>(&events);
    MakeAcceptor();
  }

  void MakeAcceptor() {
    Listener listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
    acceptor = std::make_unique<Acceptor>(config, shared.get(), std::move(listener));
    ASSERT_TRUE(acceptor->Open().ok());
  }

  void Turn() {
    shared->waiter->ForEachReady([&](int fd) { acceptor->OnReady(fd); });
    acceptor->Progress();
  }
  bool TurnUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(10 * kSecond);
    bool met = condition();
    while (!met && !deadline.Passed(Clock::Real().Now())) {
      Turn();
      met = condition();
    }
    return met;
  }
  // Calls Turn until every waiting connection has been handled.
  void Settle() {
    for (int64_t before = -1; before != acceptor->looks();) {
      before = acceptor->looks();
      Turn();
    }
  }

  Fd Knock() { return Connect(acceptor->address(), Stop{Deadline::After(5 * kSecond)}).value(); }
  std::vector<Fd> Knock(int times) {
    std::vector<Fd> strangers;
    for (int i = 0; i < times; ++i) {
      strangers.push_back(Knock());
      if (i % 64 == 63) {
        Settle();  // the kernel's queue is limited
      }
    }
    return strangers;
  }
  // Connects and leaves, like a port scan.
  void KnockAndGo(int times) {
    for (int i = 0; i < times; ++i) {
      Knock();
      if (i % 16 == 15) {
        Turn();
      }
    }
    Settle();
  }
  std::unique_ptr<TcpEndpoint> NewEndpoint(bool dials, const Address& to) {
    return std::make_unique<TcpEndpoint>(shared.get(),
                                         PathTarget{.peer = kPeer,
                                                    .address = to,
                                                    .dials = dials,
                                                    .connect_by = Deadline::After(kTime, clock)},
                                         PathSettings());
  }

  // Finishes the other side of the handshake.
  void Finish(PendingHandshake& pending) {
    ASSERT_TRUE(TurnUntil([&] {
      const absl::StatusOr<bool> progress = pending.Progress();
      EXPECT_TRUE(progress.ok()) << progress.status();
      return progress.value_or(true);
    }));
  }

  static constexpr int64_t kTime = 5 * kSecond;
  FakeClock clock;
  Recorder events;
  TransportConfig config;
  std::unique_ptr<Shared> shared;
  std::unique_ptr<Acceptor> acceptor;
};

TEST_F(TcpAcceptor, SilentStrangersAreNotLookedAt) {
  const std::vector<Fd> strangers = Knock(200);
  Settle();
  const int64_t looks = acceptor->looks();
  EXPECT_EQ(looks, 200);
  for (int i = 0; i < 1000; ++i) {
    Turn();
  }
  EXPECT_EQ(acceptor->looks(), looks);
  EXPECT_FALSE(acceptor->meeting());
}

TEST_F(TcpAcceptor, ATurnAcceptsAFew) {
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(Knock());
  }
  for (int turn = 1; turn <= 3; ++turn) {
    Turn();
    EXPECT_EQ(acceptor->looks(), turn * Acceptor::kAcceptsPerTurn);
  }
}

TEST_F(TcpAcceptor, AFloodHasABudget) {
  KnockAndGo(AcceptBudget::kBurst + 300);
  EXPECT_EQ(acceptor->looks(), AcceptBudget::kBurst);
  // Meanwhile the listener is not watched, so nothing wakes a sleeper.
  int ready = 0;
  shared->waiter->ForEachReady([&](int) { ++ready; });
  EXPECT_EQ(ready, 0);
  EXPECT_LT(acceptor->wake_at(), Deadline::After(kSecond, clock));
  clock.Advance(kSecond / 10);
  KnockAndGo(100);
  EXPECT_EQ(acceptor->looks(), AcceptBudget::kBurst + AcceptBudget::kPerSecond / 10);
}

TEST_F(TcpAcceptor, WhileAPeerIsExpectedEverybodyIsHeard) {
  KnockAndGo(AcceptBudget::kBurst + 100);
  EXPECT_EQ(acceptor->looks(), AcceptBudget::kBurst);
  const auto endpoint = NewEndpoint(false, acceptor->address());
  acceptor->Expect(endpoint.get());
  Settle();
  KnockAndGo(500);
  EXPECT_EQ(acceptor->looks(), AcceptBudget::kBurst + 600);
  clock.Advance(kTime);  // the peer did not come
  Settle();
  EXPECT_FALSE(acceptor->meeting());
  KnockAndGo(AcceptBudget::kBurst + 100);
  EXPECT_EQ(acceptor->looks(), 2 * AcceptBudget::kBurst + 600);
}

TEST_F(TcpAcceptor, WhoHasSaidNothingGoesBeforeAPeer) {
  const auto endpoint = NewEndpoint(false, acceptor->address());
  acceptor->Expect(endpoint.get());
  TransportConfig dialer;
  dialer.self = kPeer;
  PendingHandshake pending =
      PendingHandshake::Dial(acceptor->address(), dialer, Deadline::Never()).value();
  while (!pending.reached()) {
    ASSERT_TRUE(pending.Progress().ok());
  }
  // The peer has said hello and is slow.
  ASSERT_TRUE(TurnUntil([&] { return acceptor->looks() >= 1; }));
  const std::vector<Fd> strangers = Knock(2 * static_cast<int>(Acceptor::kMaxStrangers));
  Settle();
  Finish(pending);
  PendingHandshake line =
      PendingHandshake::Dial(acceptor->address(), dialer, Deadline::Never(), pending.connection())
          .value();
  Finish(line);
  ASSERT_TRUE(TurnUntil([&] { return shared->connected.size() == 1; }));
  EXPECT_EQ(shared->connected[0].first, endpoint.get());
}

TEST_F(TcpAcceptor, StrangersGetAPartOfTheDescriptorsAtMost) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit few = {256, files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  MakeAcceptor();
  setrlimit(RLIMIT_NOFILE, &files);
  const std::vector<Fd> strangers = Knock(100);
  Settle();
  const auto kept = std::count_if(strangers.begin(), strangers.end(), [](const Fd& fd) {
    char hello[Handshake::kHelloBytes];
    return ReadSome(fd.get(), hello, sizeof(hello)).ok() && ReadSome(fd.get(), hello, 1).ok();
  });
  EXPECT_EQ(kept, 32);
}

TEST_F(TcpAcceptor, StrangersThatSayAByteKeepNoPeerOut) {
  std::vector<Fd> strangers = Knock(static_cast<int>(Acceptor::kMaxStrangers));
  for (const Fd& stranger : strangers) {
    ASSERT_EQ(WriteSome(stranger.get(), "E", 1).value(), 1u);
  }
  Settle();
  const auto endpoint = NewEndpoint(false, acceptor->address());
  acceptor->Expect(endpoint.get());
  TransportConfig dialer;
  dialer.self = kPeer;
  PendingHandshake pending =
      PendingHandshake::Dial(acceptor->address(), dialer, Deadline::Never()).value();
  Settle();  // accepted, but its hello has not come
  Finish(pending);
  PendingHandshake line =
      PendingHandshake::Dial(acceptor->address(), dialer, Deadline::Never(), pending.connection())
          .value();
  Settle();
  Finish(line);
  ASSERT_TRUE(TurnUntil([&] { return shared->connected.size() == 1; }));
}

// The kernel of a stopped process accepts connections, but nothing answers on them.
TEST_F(TcpAcceptor, ADialThatIsNotAnsweredIsLostInTime) {
  const Listener listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
  std::vector<std::unique_ptr<TcpEndpoint>> endpoints;
  for (int i = 0; i < 3; ++i) {
    endpoints.push_back(NewEndpoint(true, listener.address));
    acceptor->Dial(endpoints.back().get(), listener.address);
  }
  Settle();
  clock.Advance(kTime / 2);
  const Fd stranger = Knock();
  Settle();
  for (const auto& endpoint : endpoints) {
    EXPECT_TRUE(endpoint->Arm());
  }
  clock.Advance(kTime / 2);
  Turn();
  for (const auto& endpoint : endpoints) {
    ASSERT_FALSE(endpoint->Arm());
    endpoint->Report();
    EXPECT_THAT(std::string(events.lost.back().message()), HasSubstr("took too long"));
  }
  EXPECT_FALSE(acceptor->meeting());
  EXPECT_EQ(acceptor->wake_at().at_ns, clock.Now() + Acceptor::kHandshakeTime - kTime / 2);
}

TEST_F(TcpAcceptor, ADialThatIsCutIsTriedAgain) {
  const Listener listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
  const auto endpoint = NewEndpoint(true, listener.address);
  acceptor->Dial(endpoint.get(), listener.address);
  const auto accepted = [&] {
    Fd fd;
    EXPECT_TRUE(TurnUntil([&] {
      clock.Advance(kMillisecond);
      fd = Accept(listener.fd.get()).value();
      return fd.valid();
    }));
    return fd;
  };
  for (int i = 0; i < 4; ++i) {
    const Fd first = accepted();
    const Fd line = accepted();
    // Both are closed, perhaps with the reason "too many strangers".
  }
  EXPECT_TRUE(shared->connected.empty());
  EXPECT_TRUE(acceptor->meeting());
  TransportConfig peer;
  peer.self = kPeer;
  PendingHandshake first(accepted(), acceptor->address(), peer, Deadline::Never());
  Finish(first);
  EXPECT_TRUE(shared->connected.empty());
  PendingHandshake line(accepted(), acceptor->address(), peer, Deadline::Never());
  Finish(line);
  ASSERT_TRUE(TurnUntil([&] { return shared->connected.size() == 1; }));
  EXPECT_EQ(shared->connected[0].first, endpoint.get());
  EXPECT_TRUE(shared->connected[0].second.whole());
  EXPECT_EQ(shared->connected[0].second.id, first.connection());
  EXPECT_FALSE(acceptor->meeting());
}

// The listener may have accepted the stream and said so. A second stream would then be one too
// many.
TEST_F(TcpAcceptor, AStreamThatIsCutIsNotTriedAgain) {
  const Listener listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
  const auto endpoint = NewEndpoint(true, listener.address);
  acceptor->DialStream(endpoint.get());
  Fd accepted;
  ASSERT_TRUE(TurnUntil([&] {
    accepted = Accept(listener.fd.get()).value();
    return accepted.valid();
  }));
  char hello[Handshake::kHelloBytes];
  ASSERT_TRUE(
      TurnUntil([&] { return ReadSome(accepted.get(), hello, sizeof(hello)).value() > 0; }));
  accepted.Reset();
  EXPECT_TRUE(TurnUntil([&] { return !acceptor->meeting(); }));
  EXPECT_FALSE(Accept(listener.fd.get()).value().valid());
  EXPECT_TRUE(endpoint->Arm());
}

TEST_F(TcpAcceptor, ADialThatIsAlwaysCutIsLostInTime) {
  const Listener listener = OpenListener(Address::Parse("127.0.0.1:0").value(), {}).value();
  const auto endpoint = NewEndpoint(true, listener.address);
  acceptor->Dial(endpoint.get(), listener.address);
  const int64_t began = clock.Now();
  int attempts = 0;
  ASSERT_TRUE(TurnUntil([&] {
    attempts += Accept(listener.fd.get()).value().valid() ? 1 : 0;
    clock.Advance(kMillisecond);
    return !acceptor->meeting();
  }));
  EXPECT_GE(clock.Now() - began, kTime);
  EXPECT_GE(attempts, 10);
  EXPECT_LE(attempts, 40);
  EXPECT_FALSE(endpoint->Arm());
  endpoint->Report();
  ASSERT_EQ(events.lost.size(), 1u);
  EXPECT_THAT(std::string(events.lost[0].message()), HasSubstr("cut before the handshake"));
}

}  // namespace
}  // namespace entrain
