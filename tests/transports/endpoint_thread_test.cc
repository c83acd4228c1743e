// The contract with each side driven by a thread of its own, as engines do, asleep on wait_fd when
// there is nothing to do. Run under the thread sanitizer.
#include <atomic>
#include <deque>
#include <thread>

#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

// Drives one transport until `condition`; false after 20 s. Sleeps, so a wake-up that is missed
// shows as time.
bool Drive(Transport& transport, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(20 * kSecond);
  while (!condition()) {
    if (transport.Poll() == 0) {
      SleepOn(transport, 1000);
    }
    if (deadline.Passed(Clock::Real().Now())) {
      return condition();
    }
  }
  return true;
}

TEST_P(EndpointContract, SleepersAreWoken) {
  Connect();
  constexpr int kRounds = 300;
  const int64_t begin = Clock::Real().Now();
  const auto play = [](Node& node, Endpoint& path, bool first) {
    const Buffer out = Pattern(64, 1);
    for (int i = 0; i < kRounds; ++i) {
      Buffer in(64);
      Transfer send, receive;
      path.PostRecv(Message(1), Of(in), &receive);
      if (first) {
        path.PostSend(Message(1), Of(out), &send);
      }
      ASSERT_TRUE(Drive(*node.transport, [&] { return receive.times > 0; }));
      if (!first) {
        path.PostSend(Message(1), Of(out), &send);
      }
      ASSERT_TRUE(Drive(*node.transport, [&] { return send.times > 0; }));
      ASSERT_TRUE(in == out);
    }
  };
  std::thread other([&] { play(*b, *to_a, false); });
  play(*a, *to_b, true);
  other.join();
  // A missed wake-up costs a whole second.
  EXPECT_LT(Clock::Real().Now() - begin, 5 * kSecond);
}

TEST_P(EndpointContract, TwoThreadsExchangeEverySize) {
  Connect();
  const auto play = [](Node& node, Endpoint& path, uint32_t seed) {
    std::deque<Transfer> transfers;
    std::deque<Buffer> outs, ins;
    for (uint32_t i = 0; i < 120; ++i) {
      const int64_t size = (int64_t{1} << (i % 21)) + (i % 3) - 1;
      outs.push_back(Pattern(size, i + seed));
      ins.emplace_back(outs.back().size());
      path.PostSend(Message(i % 7), Of(std::as_const(outs.back())), &transfers.emplace_back());
      path.PostRecv(Message(i % 7), Of(ins.back()), &transfers.emplace_back());
      if (i % 10 == 0) {
        path.SendControl("hello");
        node.transport->Poll();
      }
    }
    ASSERT_TRUE(Drive(*node.transport, [&] {
      for (const Transfer& transfer : transfers) {
        if (transfer.times == 0) {
          return false;
        }
      }
      return true;
    }));
    for (uint32_t i = 0; i < 120; ++i) {
      ASSERT_TRUE(ins[i] == Pattern(static_cast<int64_t>(ins[i].size()), i + 1000 - seed)) << i;
    }
  };
  std::thread other([&] { play(*b, *to_a, 1000); });
  play(*a, *to_b, 0);
  other.join();
}

// The sender revokes, overwrites and frees its buffer while the other thread is copying from it.
TEST_P(EndpointContract, Invariant7_RevokeRacesWithTheCopyingPeer) {
  Connect();
  constexpr int kRounds = 240;
  // Most of one piece: what is revoked in its middle has nothing behind it that could fail.
  const auto large = [](int i) { return i % 8 < 2; };
  const auto bytes_of = [&](int i) { return large(i) ? size_t{6} << 20 : size_t{240} << 10; };
  std::atomic<int> revoked{0};  // rounds that the sender has ended
  std::atomic<int> received{0};
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      const auto context = static_cast<Context>(100 + i);
      Buffer in(bytes_of(i), 0);
      Transfer receive;
      to_a->PostRecv(Message(1, context), Of(in), &receive);
      ASSERT_TRUE(Drive(*b->transport, [&] {
        if (revoked.load() > i && receive.times == 0) {
          to_a->Revoke(context, context, absl::AbortedError("revoked"));
        }
        return receive.times > 0;
      }));
      if (receive.status.ok()) {
        ASSERT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t byte) { return byte == 0x11; }))
            << i;
      }
      received.store(i + 1);
      to_a->SendControl("next");
      b->transport->Poll();  // also after the last round
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const auto context = static_cast<Context>(100 + i);
    // Every other one out of memory that the peer may map.
    auto own = std::make_unique<Buffer>(bytes_of(i), 0x11);
    auto region = i % 2 == 0 ? nullptr
                             : *a->regions->Allocate(static_cast<int64_t>(own->size()),
                                                     SealedMemory::Pages::kUsual);
    const Bytes out = region == nullptr ? Of(*own) : Bytes(region->memory.data(), own->size());
    std::fill(out.begin(), out.end(), std::byte{0x11});
    Transfer send;
    to_b->PostSend(Message(1, context), out, &send);
    const Deadline until =
        Deadline::After(large(i) ? i * 25 * kMicrosecond : i % 60 * 2 * kMicrosecond);
    while (!until.Passed(Clock::Real().Now())) {
      a->transport->Poll();
    }
    to_b->Revoke(context, context, absl::AbortedError("revoked"));
    std::fill(out.begin(), out.end(), std::byte{0xDD});
    own.reset();
    ASSERT_TRUE(Drive(*a->transport, [&] { return send.times > 0; }));
    if (region != nullptr) {
      a->transport->Retire(*region);
      a->regions->Remove(*region);
      region.reset();
    }
    revoked.store(i + 1);
    to_b->SendControl("revoked");  // wakes the other side
    ASSERT_TRUE(Drive(*a->transport, [&] { return received.load() > i; }));
  }
  other.join();
}

TEST_P(EndpointContract, BothSidesCloseAtOnce) {
  for (int i = 0; i < 20; ++i) {
    Connect(/*wait=*/i % 2 == 0);
    const auto play = [](Node& node, std::unique_ptr<Endpoint>& path) {
      Buffer in(1 << 20), out(1 << 20);
      Transfer send, receive;
      path->PostRecv(Message(1), Of(in), &receive);
      path->PostSend(Message(1), Of(std::as_const(out)), &send);
      node.transport->Poll();
      node.transport->Poll();
      path->Close(absl::AbortedError("both"));
      path.reset();
      ASSERT_TRUE(Drive(*node.transport, [&] { return send.times + receive.times == 2; }));
      node.transport.reset();
    };
    std::thread other([&] { play(*b, to_a); });
    play(*a, to_b);
    other.join();
  }
}

}  // namespace
}  // namespace entrain
