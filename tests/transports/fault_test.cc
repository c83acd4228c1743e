// The grammar of ENTRAIN_FAULT, and transports behind an emulated link. Times are those of a clock
// that the test advances, so they are exact. endpoint_contract_test.cc tests the contract behind a
// link.
#include <ctime>
#include <deque>

#include "lib/base/config.h"
#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(FaultPlan, IsParsed) {
  const FaultPlan plan = ParseFaultPlan(
                             "rate=12.5MB/s,latency=200us,jitter=0.5ms,seed=7,cut=2m,"
                             "ranks=0,3, transports=tcp,shm")
                             .value();
  EXPECT_EQ(plan.bytes_per_second, 12'500'000);
  EXPECT_EQ(plan.latency_ns, 200 * kMicrosecond);
  EXPECT_EQ(plan.jitter_ns, 500 * kMicrosecond);
  EXPECT_EQ(plan.seed, 7u);
  EXPECT_EQ(plan.cut_ns, 120 * kSecond);
  EXPECT_THAT(plan.ranks, ElementsAre(0, 3));
  EXPECT_THAT(plan.transports, ElementsAre("shm", "tcp"));
  EXPECT_TRUE(plan.IsFor(3) && !plan.IsFor(1) && plan.IsFor("shm") && !plan.IsFor("inproc"));
  const FaultPlan all = ParseFaultPlan("latency=0s").value();
  EXPECT_TRUE(all.IsFor(1) && all.IsFor("inproc"));
}

TEST(FaultPlan, RatesAreBytesOrBitsOfThousands) {
  const std::pair<const char*, int64_t> kRates[] = {
      {"800B/s", 800},    {"3kB/s", 3000},           {"1GB/s", 10'000'00000},   {"8bit/s", 1},
      {"64kbit/s", 8000}, {"100Mbit/s", 12'500'000}, {"2.5Gbit/s", 312'500'000}};
  for (const auto& [text, rate] : kRates) {
    EXPECT_EQ(ParseFaultPlan(absl::StrCat("rate=", text)).value().bytes_per_second, rate) << text;
  }
}

TEST(FaultPlan, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"drop", "\"drop\" is not NAME=VALUE"},
      {"loss=1%", "\"loss\" is none of rate, latency, jitter, seed, cut, ranks, transports"},
      {"rate=12", "rate: \"12\" is not a rate"},
      {"rate=0B/s", "rate: \"0B/s\" is not a rate"},
      {"rate=0.5B/s", "rate: \"0.5B/s\" is not a rate"},
      {"rate=1mb/s", "rate: \"1mb/s\" is not a rate"},
      {"rate=-1MB/s", "rate: \"-1MB/s\" is not a rate"},
      {"rate=99999999999GB/s", "rate: \"99999999999GB/s\" is not a rate"},
      {"latency=5", "latency: \"5\" is not a time"},
      {"latency=-5us", "latency: \"-5us\" is not a time"},
      {"latency=", "latency: \"\" is not a time"},
      {"latency=1ms,2ms", "\"2ms\" is not NAME=VALUE"},
      {"latency=1ms,latency=1ms", "latency is given twice"},
      {"latency=1ms,", "\"\" is not NAME=VALUE"},
      {"jitter=x", "jitter: \"x\" is not a time"},
      {"cut=soon", "cut: \"soon\" is not a time"},
      {"rate=1B/s,seed=-1", "seed: \"-1\" is not an integer"},
      {"rate=1B/s,ranks=0,-3", "ranks: \"-3\" is no rank"},
      {"rate=1B/s,ranks=", "ranks: \"\" is no rank"},
      {"rate=1B/s,transports=udp", "transports: transports \"udp\": \"udp\" is not a transport"},
      {"seed=1,ranks=0", "needs a rate, a latency, a jitter or a cut"},
      {" ", "\"\" is not NAME=VALUE"},
  };
  for (const auto& [text, why] : kWrong) {
    const absl::Status status = ParseFaultPlan(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", text, "\": ")));
  }
}

// One node sends over an emulated link to two nodes without one. All are in this thread.
class FaultLinkTest : public testing::Test {
 protected:
  static constexpr int64_t kLatency = 200 * kMicrosecond;

  void Connect(const FaultPlan& plan, absl::string_view transport = "inproc") {
    for (uint8_t i = 0; i < 3; ++i) {
      nodes.push_back(std::make_unique<Node>());
      nodes[i]->config.self.fill(static_cast<uint8_t>(i + 1));
      nodes[i]->config.host_id = "fault-test";
      nodes[i]->config.clock = &clock;
    }
    for (const TransportFactory& factory : TransportRegistry()) {
      if (factory.name == transport) {
        auto made = CreateBehind(CreateFaultLink(plan, 0, clock), factory, nodes[0]->config,
                                 &nodes[0]->events);
        nodes[0]->transport = *std::move(made);
      }
    }
    for (size_t i : {1u, 2u}) {
      MakeTransport(transport, *nodes[i]);
      to[i] = Path(0, i);
      from[i] = Path(i, 0);
    }
    Poll();
  }
  std::unique_ptr<Endpoint> Path(size_t i, size_t j) {
    return nodes[i]
        ->transport->Connect(nodes[j]->config.self, nodes[j]->transport->address())
        .value();
  }
  void TearDown() override {
    for (const auto& node : nodes) {
      EXPECT_TRUE(node->events.lost.empty() || losses_expected) << node->events.lost[0];
    }
    for (size_t i : {1u, 2u}) {
      for (Endpoint* path : {to[i].get(), from[i].get()}) {
        if (path != nullptr) {
          path->Close(absl::AbortedError("end of test"));
        }
      }
    }
    Poll();
  }
  void Poll() {
    for (int i = 0; i < 10; ++i) {
      for (const auto& node : nodes) {
        node->transport->Poll();
      }
    }
  }
  // A message of `bytes` to node `i`, and its receive.
  struct Move {
    Buffer out, in;
    Transfer sent, received;
    bool arrived() const { return received.times > 0; }
  };
  Move& Send(size_t i, int64_t bytes, Context context = kContext) {
    Move& move = moves.emplace_back();
    move.out = Pattern(bytes, static_cast<uint32_t>(moves.size()));
    move.in.resize(move.out.size());
    from[i]->PostRecv(Message(next_tag, context), Of(move.in), &move.received);
    to[i]->PostSend(Message(next_tag++, context), Of(std::as_const(move.out)), &move.sent);
    return move;
  }
  // Expects that the message arrives at this time and not before.
  void ExpectAt(int64_t at_ns, const Move& move) {
    clock.Advance(at_ns - 1 - clock.Now());
    Poll();
    EXPECT_EQ(move.sent.times + move.received.times, 0) << "before " << at_ns;
    clock.Advance(1);
    Poll();
    ExpectArrived(move);
  }
  static void ExpectArrived(const Move& move) {
    EXPECT_TRUE(move.received.status.ok()) << move.received.status;
    EXPECT_TRUE(move.sent.status.ok()) << move.sent.status;
    EXPECT_EQ(move.in, move.out);
  }

  FakeClock clock;
  std::vector<std::unique_ptr<Node>> nodes;
  std::unique_ptr<Endpoint> to[3], from[3];
  std::deque<Move> moves;
  uint32_t next_tag = 0;
  bool losses_expected = false;
};

TEST_F(FaultLinkTest, RateMakesMessagesWaitForEachOtherAndLatencyDoesNot) {
  Connect({.bytes_per_second = 1'000'000, .latency_ns = kLatency});
  const int64_t begin = clock.Now();
  const Move& first = Send(1, 1000);
  const Move& second = Send(2, 500);  // one link for all receivers
  const Move& nothing = Send(1, 0);
  ExpectAt(begin + 1000 * kMicrosecond + kLatency, first);
  ExpectAt(begin + 1500 * kMicrosecond + kLatency, second);
  ExpectArrived(nothing);
  const int64_t later = clock.Now() + kSecond;  // an idle link accumulates no credit
  clock.Advance(kSecond);
  const Move& third = Send(1, 2000);
  ExpectAt(later + 2000 * kMicrosecond + kLatency, third);
}

TEST_F(FaultLinkTest, LatencyAloneDelaysAllAlike) {
  Connect({.latency_ns = kLatency});
  const int64_t begin = clock.Now();
  const Move& large = Send(1, 3 << 20);
  clock.Advance(1000);
  const Move& small = Send(1, 8);
  ExpectAt(begin + kLatency, large);
  EXPECT_FALSE(small.arrived());
  ExpectAt(begin + kLatency + 1000, small);
}

TEST_F(FaultLinkTest, APollThatComesLateCostsNoRate) {
  Connect({.bytes_per_second = 1'000'000});
  const int64_t begin = clock.Now();
  for (int i = 0; i < 5; ++i) {
    Send(1, 1000);
  }
  clock.Advance(begin + 2900 * kMicrosecond - clock.Now());
  Poll();
  EXPECT_TRUE(moves[1].arrived());
  EXPECT_FALSE(moves[2].arrived());
  ExpectAt(begin + 5000 * kMicrosecond, moves[4]);
}

TEST_F(FaultLinkTest, WhatIsRevokedFreesTheLink) {
  Connect({.bytes_per_second = 1'000'000, .latency_ns = kLatency});
  const int64_t begin = clock.Now();
  const Move& started = Send(1, 1000);
  const Move& doomed = Send(1, 10'000'000, kOtherContext);
  const Move& other = Send(2, 3000, kOtherContext);  // equal number, other path
  const Move& behind = Send(1, 1000);
  clock.Advance(400 * kMicrosecond);
  to[1]->Revoke(kOtherContext, kOtherContext, absl::AbortedError("enough"));
  EXPECT_EQ(doomed.sent.times, 0) << "completed inside Revoke";
  Poll();
  EXPECT_EQ(doomed.sent.status.code(), absl::StatusCode::kAborted);
  ExpectAt(begin + 1000 * kMicrosecond + kLatency, started);
  ExpectAt(begin + 4000 * kMicrosecond + kLatency, other);
  ExpectAt(begin + 5000 * kMicrosecond + kLatency, behind);
  from[1]->Revoke(kOtherContext, kOtherContext, absl::AbortedError("enough"));
  // Revokes also a message that is on the link itself.
  const Move& on_it = Send(1, 9'000'000, kOtherContext);
  clock.Advance(kMillisecond);
  const Move& next = Send(2, 1000);
  to[1]->Revoke(kOtherContext, kOtherContext, absl::AbortedError("enough"));
  ExpectAt(clock.Now() + 1000 * kMicrosecond + kLatency, next);
  EXPECT_EQ(on_it.sent.status.code(), absl::StatusCode::kAborted);
  Poll();
}

TEST_F(FaultLinkTest, JitterKeepsTheOrderOfAPathAndTheSameSeedGivesTheSame) {
  const FaultPlan plan = {.latency_ns = kLatency, .jitter_ns = kLatency};
  std::vector<int64_t> arrivals[2];
  for (auto& at : arrivals) {
    nodes.clear();
    moves.clear();
    Connect(plan);
    const int64_t begin = clock.Now();
    for (int i = 0; i < 60; ++i) {
      Send(i % 2 == 0 ? 1 : 2, 8);
    }
    std::vector<bool> seen(60);
    while (at.size() < 60 && clock.Now() < begin + kSecond) {
      Poll();
      for (size_t i = 0; i < 60; ++i) {
        if (moves[i].arrived() && !seen[i]) {
          EXPECT_TRUE(i < 2 || seen[i - 2]) << "before the one before it on its path";
          seen[i] = true;
          at.push_back(clock.Now() - begin);
        }
      }
      clock.Advance(kMicrosecond);
    }
    ASSERT_EQ(at.size(), 60u);
    EXPECT_GE(at.front(), kLatency);
    EXPECT_GT(at.back(), kLatency + kLatency / 2);
    EXPECT_LE(at.back(), 2 * kLatency + kMicrosecond);
    TearDown();
    to[1].reset();
    to[2].reset();
    from[1].reset();
    from[2].reset();
  }
  EXPECT_EQ(arrivals[0], arrivals[1]);
}

TEST_F(FaultLinkTest, ControlPasses) {
  Connect({.bytes_per_second = 1, .latency_ns = kSecond});
  Send(1, 1000);
  to[1]->SendControl("at once");
  Poll();
  EXPECT_THAT(nodes[1]->events.controls, ElementsAre("at once"));
}

TEST_F(FaultLinkTest, ALostPathFailsWhatIsOnTheLinkAndTheOthersGoOn) {
  losses_expected = true;
  Connect({.bytes_per_second = 1'000'000, .latency_ns = kLatency});
  const Move& doomed = Send(1, 1'000'000);
  const Move& other = Send(2, 1000);
  from[1]->Close(absl::AbortedError("node 1 goes"));
  Poll();
  EXPECT_EQ(doomed.sent.status.code(), absl::StatusCode::kUnavailable) << doomed.sent.status;
  ASSERT_EQ(nodes[0]->events.lost.size(), 1u);
  const Move& late = Send(1, 8);
  Poll();
  EXPECT_EQ(late.sent.status.code(), absl::StatusCode::kUnavailable);
  ExpectAt(clock.Now() + 1000 * kMicrosecond + kLatency, other);
}

TEST_F(FaultLinkTest, CutEndsEveryPathOnBothSides) {
  losses_expected = true;
  Connect({.cut_ns = kSecond});
  const Move& before = Send(1, 1000);
  Poll();
  ExpectArrived(before);
  Transfer receive;
  Buffer in(8);
  to[2]->PostRecv(Message(99), Of(in), &receive);
  Move& waiting = moves.emplace_back();
  waiting.out.resize(1 << 20);
  to[1]->PostSend(Message(98), Of(std::as_const(waiting.out)), &waiting.sent);
  clock.Advance(kSecond);
  Poll();
  ASSERT_EQ(nodes[0]->events.lost.size(), 2u);
  EXPECT_THAT(std::string(nodes[0]->events.lost[0].message()), HasSubstr("ENTRAIN_FAULT"));
  for (size_t i : {1u, 2u}) {
    ASSERT_EQ(nodes[i]->events.lost.size(), 1u);
    EXPECT_THAT(std::string(nodes[i]->events.lost[0].message()), HasSubstr("ENTRAIN_FAULT"));
  }
  EXPECT_EQ(receive.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.sent.status.code(), absl::StatusCode::kUnavailable);
}

// Sleeps by the real clock until a message is due. This takes no processor time, and ends no later
// than a timer would.
TEST(FaultTransport, ASleeperIsWokenWhenAMessageIsDueAndTakesNoProcessorTime) {
  constexpr int64_t kDelay = 400 * kMillisecond;
  for (const char* name : {"inproc", "shm", "tcp"}) {
    Node a, b;
    for (Node* node : {&a, &b}) {
      node->config.self.fill(node == &a ? 1 : 2);
      node->config.host_id = "fault-test";
    }
    for (const TransportFactory& factory : TransportRegistry()) {
      if (factory.name == std::string(name)) {
        const FaultPlan plan = {.bytes_per_second = 1000, .latency_ns = kDelay / 2};
        a.transport =
            CreateBehind(CreateFaultLink(plan, 0, Clock::Real()), factory, a.config, &a.events)
                .value();
      }
    }
    MakeTransport(name, b);
    const auto ab = a.transport->Connect(b.config.self, b.transport->address()).value();
    const auto ba = b.transport->Connect(a.config.self, a.transport->address()).value();
    const Deadline connected = Deadline::After(100 * kMillisecond);
    while (!connected.Passed(Clock::Real().Now())) {
      a.transport->Poll();
      b.transport->Poll();
    }
    const Buffer out = Pattern(200, 1);
    Transfer sent;
    timespec cpu_before{}, cpu_after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_before);
    const int64_t begin = Clock::Real().Now();
    ab->PostSend(Message(1), Of(out), &sent);
    while (sent.times == 0 && Clock::Real().Now() - begin < 10 * kSecond) {
      if (a.transport->Poll() == 0) {
        SleepOn(*a.transport, 5000);
      }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu_after);
    EXPECT_TRUE(sent.status.ok()) << name << sent.status;
    EXPECT_GE(Clock::Real().Now() - begin, kDelay) << name;
    EXPECT_LT(Clock::Real().Now() - begin, 4 * kSecond) << name << ": the timer did not wake it";
    const double cpu = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) * 1e9 +
                       static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec);
    EXPECT_LT(cpu, 0.02 * static_cast<double>(kDelay)) << name;
    ab->Close(absl::AbortedError("end"));
    ba->Close(absl::AbortedError("end"));
    a.transport->Poll();
    b.transport->Poll();
  }
}

}  // namespace
}  // namespace entrain
