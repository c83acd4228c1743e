// The fixture of the contract suite. One transport connects two or more nodes inside this test,
// like processes. The test polls them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/call.h"
#include "tests/support/transfer.h"
#include "transports/registry.h"
#include "transports/transport.h"

namespace entrain {

// Records the events that a transport reports to its engine.
struct Recorder final : Events {
  std::set<Context> refused;
  std::vector<Envelope> early;
  std::vector<std::string> controls;
  std::vector<absl::Status> lost;
  std::function<void(Endpoint&)> on_control;

  bool Accepts(Context context) override { return refused.count(context) == 0; }
  void OnEarly(Endpoint&, const Envelope& envelope) override { early.push_back(envelope); }
  void OnControl(Endpoint& from, absl::string_view message) override {
    controls.emplace_back(message);
    if (on_control) {
      on_control(from);
    }
  }
  void OnLost(Endpoint&, const absl::Status& why) override { lost.push_back(why); }
};

struct Node {
  TransportConfig config;
  std::shared_ptr<SharedRegions> regions = std::make_shared<SharedRegions>();  // config's
  Recorder events;
  std::unique_ptr<Transport> transport;
};

using Buffer = std::vector<uint8_t>;

// Returns `bytes` whose values depend on their position and on `seed`.
Buffer Pattern(int64_t bytes, uint32_t seed);
inline Bytes Of(Buffer& buffer) {
  return {reinterpret_cast<std::byte*>(buffer.data()), buffer.size()};
}
inline ConstBytes Of(const Buffer& buffer) {
  return {reinterpret_cast<const std::byte*>(buffer.data()), buffer.size()};
}

constexpr Context kContext = 3, kOtherContext = 4;
inline Envelope Message(uint32_t user_tag, Context context = kContext, int64_t count = 1) {
  return {Tag(context, user_tag, 0, Tag::kPointToPoint),
          {.kind = CallKind::kSend, .dtype = 0, .count = count}};
}

// Returns the transports over which the suite runs: those of the registry that are available. tcp
// also runs with further connections as "tcp_streams", with checksums as "tcp_crc", and with TLS by
// a key and by certificates as "tcp_tls", "tcp_tls_streams" and "tcp_certificates". "tcp_long" and
// "tcp_tls_long" treat the path as a long one. ucx runs as
// "ucx_tcp" and "ucx_sm", depending on UCX's transport. Each transport without TLS also runs behind
// an emulated link as "fault_NAME".
std::vector<std::string> EveryTransport();
// Returns the transports of EveryTransport() without inproc.
std::vector<std::string> EveryTransportOfProcesses();
// Returns the transport's own name.
inline std::string Beneath(absl::string_view name) {
  absl::ConsumePrefix(&name, "fault_");
  absl::ConsumeSuffix(&name, "_streams");
  absl::ConsumeSuffix(&name, "_long");
  absl::ConsumeSuffix(&name, "_crc");
  absl::ConsumeSuffix(&name, "_tls");
  absl::ConsumeSuffix(&name, "_certificates");
  return std::string(absl::StartsWith(name, "ucx_") ? "ucx" : name);
}
// Makes Node::transport, the transport called `name`, with the node's config.
void MakeTransport(absl::string_view name, Node& node);
// Makes a node of the transport called `name`. Peer ids compare like `index`.
std::unique_ptr<Node> MakeNode(absl::string_view name, uint8_t index, absl::string_view key = "");

// Returns true if TryRecv or a similar call must be repeated.
inline bool IsToCome(Endpoint::Next next) {
  return next == Endpoint::Next::kNothing || next == Endpoint::Next::kPart;
}

// Returns whether TrySend copies this message now. If it sends an RTS, nothing follows.
inline bool Copies(Endpoint& to, const Envelope& envelope, ConstBytes bytes) {
  SendRequest request;
  return to.TrySend(envelope, bytes, &request) == Endpoint::Sent::kCopied;
}

// Sleeps on wait_fd for at most `ms`, as a driver does when it has nothing to do.
void SleepOn(Transport& transport, int ms);

class EndpointContract : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override;
  // Makes two connected nodes. `wait`: returns when a first message has arrived in each direction.
  void Connect(bool wait = true);
  // Polls both nodes until `condition` holds. Returns false after `seconds`.
  bool PollUntil(const std::function<bool()>& condition, double seconds = 20);
  // Polls until both transfers are done. Expects OK.
  bool PollBoth(const Transfer& x, const Transfer& y) {
    return PollUntil([&] { return x.times > 0 && y.times > 0; });
  }
  // Polls until no event has come for a while. For tests that expect no event.
  void Settle();
  // Receives by TryRecv at b a message that a has sent or is sending.
  Endpoint::Next Take(const Envelope& envelope, Bytes into);
  // The messages of tag 1 that TrySend accepts, up to the first message that it does not copy.
  struct Many {
    int sent = 0;
    std::optional<SendRequest> rts;  // of the last message
  };
  Many SendMany(ConstBytes bytes, int most);
  // Calls TryTaken for a message sent by RTS until the result is final, without polling the sender.
  // Returns this result.
  static Endpoint::Next UntilTaken(Endpoint& sender, SendRequest request);
  void ExpectTaken(const Many& many) {
    if (many.rts) {
      EXPECT_EQ(UntilTaken(*to_b, *many.rts), Endpoint::Next::kThis);
    }
  }
  // Sends a message in each direction and expects that both arrive.
  void ExpectGood(Context context = kOtherContext);
  void Poll() {
    a->transport->Poll();
    b->transport->Poll();
  }

  std::unique_ptr<Node> a, b;
  std::unique_ptr<Endpoint> to_b, to_a;  // paths of a and of b
  uint32_t next_tag = 1000;
};

}  // namespace entrain
