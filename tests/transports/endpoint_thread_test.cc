// The contract with each side driven by a thread of its own, as by engines. A thread sleeps on
// wait_fd when it has nothing to do. Run under the thread sanitizer.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

// Drives one transport until `condition` holds. Returns false after 20 s. Sleeps, so a missed
// wake-up costs time.
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

// One side of a conversation. Each message is sent and received in a randomly drawn way: at once,
// lent at once, posted, or begun in one way and ended in another.
class EveryWay {
 public:
  EveryWay(Node& node, Endpoint& path, uint32_t seed)
      : node_(node), path_(path), random_(seed), seed_(seed) {
    region_ = *node.regions->Allocate(kMost, SealedMemory::Pages::kUsual);
  }
  ~EveryWay() {
    node_.transport->Retire(*region_);
    node_.regions->Remove(*region_);
  }
  // Sends and receives message `i`. `others`: the seed of the other side.
  void Exchange(uint32_t i, int64_t bytes, uint32_t others) {
    Buffer own = Pattern(bytes, i + seed_), in(own.size(), 0);
    const bool shared = random_() % 3 == 0;
    if (shared) {
      std::copy(own.begin(), own.end(), reinterpret_cast<uint8_t*>(region_->memory.data()));
    }
    const Bytes out = shared ? Bytes(region_->memory.data(), own.size()) : Of(own);
    Transfer sent, received;
    Loan loan;
    const bool send_first = random_() % 2 == 0;
    std::optional<SendRequest> request;
    if (send_first) {
      request = Send(i, out, &sent);
    }
    const bool taken = TryReceive(i, Of(in));
    if (!taken) {
      random_() % 2 == 0 ? path_.PostRecv(Message(i % 3), Of(in), &received)
                         : path_.PostRecv(Message(i % 3), Of(in), &received, {.loan = &loan});
    }
    if (!send_first) {
      request = Send(i, out, &sent);
    }
    if (request) {
      TakeBack(*request, &sent);
    }
    if (!taken) {
      ASSERT_TRUE(Drive(*node_.transport, [&] { return received.times > 0; })) << i;
      ASSERT_EQ(received.status, absl::OkStatus());
      if (loan.lent != nullptr) {
        std::copy_n(reinterpret_cast<const uint8_t*>(loan.lent), in.size(), in.begin());
        ASSERT_EQ(path_.Release(&loan), absl::OkStatus());
      }
    }
    ASSERT_TRUE(in == Pattern(bytes, i + others)) << i << ", " << bytes << " bytes";
    ASSERT_TRUE(Drive(*node_.transport, [&] { return sent.times > 0; })) << i;
    ASSERT_EQ(sent.status, absl::OkStatus());
    std::fill(out.begin(), out.end(), std::byte{0xDD});
  }

 private:
  static constexpr int64_t kMost = 320 << 10;

  std::optional<SendRequest> Send(uint32_t i, ConstBytes out, Transfer* sent) {
    SendRequest request;
    const bool posts = random_() % 3 == 0;
    switch (posts ? Endpoint::Sent::kNo : path_.TrySend(Message(i % 3), out, &request)) {
      case Endpoint::Sent::kRtsSent:
        return request;
      case Endpoint::Sent::kCopied:
        sent->times = 1;
        sent->status = absl::OkStatus();
        break;
      case Endpoint::Sent::kNo:
        path_.PostSend(Message(i % 3), out, sent);
        break;
    }
    return std::nullopt;
  }
  bool TryReceive(uint32_t i, Bytes in) {
    auto next = Endpoint::Next::kNothing;
    const bool looks = random_() % 2 == 0;
    const std::byte* data = in.data();
    for (auto turns = random_() % 300; turns > 0 && IsToCome(next); --turns) {
      next = path_.TryRecv(Message(i % 3), in, looks ? &data : nullptr);
    }
    if (next == Endpoint::Next::kThis && data != in.data() && !in.empty()) {
      std::memcpy(in.data(), data, in.size());
    }
    return next == Endpoint::Next::kThis;
  }
  void TakeBack(SendRequest request, Transfer* sent) {
    auto next = Endpoint::Next::kNothing;
    for (auto turns = random_() % 300; turns > 0 && next == Endpoint::Next::kNothing; --turns) {
      next = path_.TryTaken(request);
    }
    if (next == Endpoint::Next::kThis) {
      sent->times = 1;
      sent->status = absl::OkStatus();
    } else {
      path_.Await(request, sent);
    }
  }

  Node& node_;
  Endpoint& path_;
  std::mt19937 random_;
  const uint32_t seed_;
  std::shared_ptr<const SharedRegion> region_;
};

TEST_P(EndpointContract, EveryWayOfSendingMeetsEveryWayOfReceiving) {
  Connect();
  const auto play = [](Node& node, Endpoint& path, uint32_t seed) {
    EveryWay side(node, path, seed);
    std::mt19937 sizes(4);  // equal on both sides
    for (uint32_t i = 0; i < 300; ++i) {
      const int64_t bytes =
          i % 20 == 0 ? 0 : (int64_t{1} << (sizes() % 19)) + static_cast<int64_t>(sizes() % 100);
      ASSERT_NO_FATAL_FAILURE(side.Exchange(i, bytes, 1000 - seed));
    }
  };
  std::thread other([&] { play(*b, *to_a, 1000); });
  play(*a, *to_b, 0);
  other.join();
}

// The sender revokes a message, then overwrites and frees its buffer, while the other thread is
// copying from it.
TEST_P(EndpointContract, Invariant7_RevokeRacesWithTheCopyingPeer) {
  Connect();
  constexpr int kRounds = 360;
  // Some messages are sent and received at once, where this is possible. Most others have one
  // piece: if such a message is revoked during the copy, no later piece can fail.
  const auto at_once = [](int i) { return i % 3 == 2; };
  const auto large = [&](int i) { return i % 8 < 2 && !at_once(i); };
  const auto bytes_of = [&](int i) {
    return at_once(i) ? size_t{60} << 10 : large(i) ? size_t{6} << 20 : size_t{240} << 10;
  };
  std::atomic<int> revoked{0};  // rounds that the sender has ended
  std::atomic<int> received{0}, waiting{-1};
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      const auto context = static_cast<Context>(100 + i);
      Buffer in(bytes_of(i), 0);
      Transfer receive;
      // The last control message must not be pending.
      ASSERT_TRUE(Drive(*b->transport,
                        [&] { return b->events.controls.size() >= static_cast<size_t>(i); }));
      auto next = at_once(i) ? Endpoint::Next::kNothing : Endpoint::Next::kOther;
      waiting.store(i);
      while (IsToCome(next) && revoked.load() <= i) {
        next = to_a->TryRecv(Message(1, context), Of(in));
      }
      if (next == Endpoint::Next::kThis) {
        receive.times = 1;
        receive.status = absl::OkStatus();
      } else {
        to_a->PostRecv(Message(1, context), Of(in), &receive);
      }
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
    // Every other message is in memory that the peer may map.
    auto own = std::make_unique<Buffer>(bytes_of(i), 0x11);
    auto region = i % 2 == 0 ? nullptr
                             : *a->regions->Allocate(static_cast<int64_t>(own->size()),
                                                     SealedMemory::Pages::kUsual);
    const Bytes out = region == nullptr ? Of(*own) : Bytes(region->memory.data(), own->size());
    std::fill(out.begin(), out.end(), std::byte{0x11});
    while (at_once(i) && waiting.load() < i && !HasFailure()) {
      a->transport->Poll();  // the last control message may not be sent yet
    }
    Transfer send;
    SendRequest unused;
    if (at_once(i) && to_b->TrySend(Message(1, context), out, &unused) != Endpoint::Sent::kNo) {
      send.times = 1;  // no completion tells its end
    } else {
      to_b->PostSend(Message(1, context), out, &send);
    }
    const Deadline until = Deadline::After(at_once(i) ? i % 40 * kMicrosecond
                                           : large(i) ? i * 25 * kMicrosecond
                                                      : i % 60 * 2 * kMicrosecond);
    while (!until.Passed(Clock::Real().Now())) {
      if (!at_once(i)) {
        a->transport->Poll();
      }
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
