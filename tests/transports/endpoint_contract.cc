#include "tests/transports/endpoint_contract.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/certificates.h"

namespace entrain {
namespace {

// Sets how UCX connects the processes of one host, if `name` says it. UCX reads this when a
// transport is made.
void SetWay(absl::string_view name) {
  for (const char* const way : {"tcp", "sm"}) {
    if (absl::EndsWith(name, absl::StrCat("ucx_", way))) {
      setenv("UCX_TLS", way, 1);
      setenv("ENTRAIN_INSECURE", "1", 1);  // needed by UCX's tcp
    }
  }
}

// Sets checksums, or TLS within the host, if `name` says it.
void SetTls(absl::string_view name, Security* security) {
  security->checksums = absl::StrContains(name, "_crc");
  if (absl::StrContains(name, "_tls")) {
    if (security->key.empty()) {
      *security = Security("a key for all nodes");
    }
    security->within_host = true;
  } else if (absl::StrContains(name, "_certificates")) {
    static Authority authority;
    static const TlsFiles files = authority.Issue("node");
    security->files = files;
    security->tls = TlsContext::ForCertificates(files).value();
    security->within_host = true;
  }
}

}  // namespace

std::vector<std::string> EveryTransport() {
  // Unless tcp is named, UCX uses only RDMA.
  setenv("UCX_TLS", "tcp", 0);
  std::vector<std::string> names;
  for (const TransportFactory& factory : TransportRegistry()) {
    if (factory.name != std::string("ucx")) {
      names.emplace_back(factory.name);
      if (names.back() == "tcp") {
        names.emplace_back("tcp_streams");
      }
    } else if (factory.Absence(/*named=*/true).ok()) {
      names.insert(names.end(), {"ucx_tcp", "ucx_sm"});
    }
  }
  for (size_t i = 0, plain = names.size(); i < plain; ++i) {
    names.push_back(absl::StrCat("fault_", names[i]));
  }
  names.insert(names.end(), {"tcp_crc", "tcp_tls", "tcp_tls_streams", "tcp_certificates",
                             "tcp_long", "tcp_tls_long"});
  return names;
}

std::vector<std::string> EveryTransportOfProcesses() {
  std::vector<std::string> names = EveryTransport();
  names.erase(std::remove_if(names.begin(), names.end(),
                             [](const std::string& name) {
                               // Each process has an authority of its own.
                               return Beneath(name) == "inproc" || name == "tcp_certificates";
                             }),
              names.end());
  return names;
}

Buffer Pattern(int64_t bytes, uint32_t seed) {
  Buffer buffer(static_cast<size_t>(bytes));
  uint64_t word = seed;
  for (size_t at = 0; at < buffer.size(); at += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = word ^ (word >> 32);  // the low bits of `word` repeat soon
    std::memcpy(&buffer[at], &mixed, std::min(sizeof(mixed), buffer.size() - at));
  }
  return buffer;
}

void MakeTransport(absl::string_view name, Node& node) {
  SetWay(name);
  SetTls(name, &node.config.security);
  node.config.tcp_streams = absl::EndsWith(name, "_streams") ? "3" : "";
  node.config.least_round_trip_ns = absl::EndsWith(name, "_long") ? 20 * kMillisecond : 0;
  // Fast enough for a suite that moves much data, and slow enough that everything waits for a
  // while.
  const FaultPlan plan = {.bytes_per_second = 4'000'000'000,
                          .latency_ns = 30 * kMicrosecond,
                          .jitter_ns = 20 * kMicrosecond};
  for (const TransportFactory& factory : TransportRegistry()) {
    if (factory.name == Beneath(name)) {
      absl::StatusOr<std::unique_ptr<Transport>> transport =
          !absl::StartsWith(name, "fault_")
              ? factory.create(node.config, &node.events)
              : CreateBehind(CreateFaultLink(plan, node.config.self[0], *node.config.clock),
                             factory, node.config, &node.events);
      EXPECT_TRUE(transport.ok()) << transport.status();
      node.transport = transport.ok() ? *std::move(transport) : nullptr;
    }
  }
}

std::unique_ptr<Node> MakeNode(absl::string_view name, uint8_t index, absl::string_view key) {
  auto node = std::make_unique<Node>();
  node->config.self.fill(index);
  node->config.host_id = "contract-test";
  node->config.security = Security(key);
  node->config.regions = node->regions;
  MakeTransport(name, *node);
  return node;
}

void SleepOn(Transport& transport, int ms) {
  if (transport.Arm()) {
    pollfd wait = {transport.wait_fd(), POLLIN, 0};
    poll(&wait, 1, ms);
  }
}

void EndpointContract::Connect(bool wait) {
  a = MakeNode(GetParam(), 1);
  b = MakeNode(GetParam(), 2);
  ASSERT_NE(a->transport, nullptr);
  ASSERT_NE(b->transport, nullptr);
  ASSERT_TRUE(a->transport->Reaches(b->transport->address()));
  auto ab = a->transport->Connect(b->config.self, b->transport->address());
  ASSERT_TRUE(ab.ok()) << ab.status();
  to_b = *std::move(ab);
  auto ba = b->transport->Connect(a->config.self, a->transport->address());
  ASSERT_TRUE(ba.ok()) << ba.status();
  to_a = *std::move(ba);
  if (wait) {
    ExpectGood();
    if (absl::EndsWith(GetParam(), "_streams") || absl::EndsWith(GetParam(), "_long")) {
      Settle();  // until the streams are connected
    }
    b->events.early.clear();
    a->events.early.clear();
  }
}

void EndpointContract::TearDown() {
  for (Endpoint* endpoint : {to_b.get(), to_a.get()}) {
    if (endpoint != nullptr) {
      endpoint->Close(absl::AbortedError("end of test"));
    }
  }
  for (Node* node : {a.get(), b.get()}) {
    if (node != nullptr && node->transport != nullptr) {
      node->transport->Poll();
    }
  }
  to_b.reset();
  to_a.reset();
}

bool EndpointContract::PollUntil(const std::function<bool()>& condition, double seconds) {
  const Deadline deadline = Deadline::After(static_cast<int64_t>(seconds * kSecond));
  while (!condition()) {
    Poll();
    if (deadline.Passed(Clock::Real().Now())) {
      return condition();
    }
  }
  return true;
}

void EndpointContract::Settle() {
  constexpr int kLastPolls = 100;  // the machine may not have run this thread for all of the time
  int64_t quiet_since = Clock::Real().Now();
  const Deadline deadline = Deadline::After(10 * kSecond);
  for (int last = 0; last < kLastPolls && !deadline.Passed(Clock::Real().Now());) {
    if (a->transport->Poll() + b->transport->Poll() > 0) {
      quiet_since = Clock::Real().Now();
      last = 0;
    } else if (Clock::Real().Now() - quiet_since >= 20 * kMillisecond) {
      ++last;
    } else {
      // Leaves the core to the other tests that run at this time.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

Endpoint::Next EndpointContract::Take(const Envelope& envelope, Bytes into) {
  const Deadline deadline = Deadline::After(20 * kSecond);
  Endpoint::Next next = to_a->TryRecv(envelope, into);
  while (IsToCome(next) && !deadline.Passed(Clock::Real().Now())) {
    a->transport->Poll();
    next = to_a->TryRecv(envelope, into);
  }
  return next;
}

EndpointContract::Many EndpointContract::SendMany(ConstBytes bytes, int most) {
  Many many;
  auto how = Endpoint::Sent::kCopied;
  while (how == Endpoint::Sent::kCopied && many.sent < most) {
    SendRequest request;
    how = to_b->TrySend(Message(1), bytes, &request);
    many.sent += how == Endpoint::Sent::kNo ? 0 : 1;
    if (how == Endpoint::Sent::kRtsSent) {
      many.rts = request;
    }
  }
  return many;
}

Endpoint::Next EndpointContract::UntilTaken(Endpoint& sender, SendRequest request) {
  const Deadline deadline = Deadline::After(20 * kSecond);
  Endpoint::Next next = sender.TryTaken(request);
  while (next == Endpoint::Next::kNothing && !deadline.Passed(Clock::Real().Now())) {
    next = sender.TryTaken(request);
  }
  return next;
}

void EndpointContract::ExpectGood(Context context) {
  const uint32_t tag = next_tag++;
  const Buffer from_a = Pattern(1000, tag), from_b = Pattern(3000, tag + 1);
  Buffer at_a(from_b.size()), at_b(from_a.size());
  Transfer sends[2], receives[2];
  to_b->PostSend(Message(tag, context), Of(from_a), &sends[0]);
  to_a->PostSend(Message(tag, context), Of(from_b), &sends[1]);
  to_b->PostRecv(Message(tag, context), Of(at_a), &receives[0]);
  to_a->PostRecv(Message(tag, context), Of(at_b), &receives[1]);
  ASSERT_TRUE(PollUntil([&] {
    return sends[0].times + sends[1].times + receives[0].times + receives[1].times == 4;
  })) << "lost: "
      << testing::PrintToString(a->events.lost) << testing::PrintToString(b->events.lost);
  EXPECT_TRUE(receives[0].status.ok()) << receives[0].status;
  EXPECT_TRUE(receives[1].status.ok()) << receives[1].status;
  EXPECT_EQ(at_a, from_b);
  EXPECT_EQ(at_b, from_a);
}

}  // namespace entrain
