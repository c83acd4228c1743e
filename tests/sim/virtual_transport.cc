#include "tests/sim/virtual_transport.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "lib/base/status.h"
#include "tests/sim/virtual_world.h"
#include "transports/registry.h"

namespace entrain {
namespace {

constexpr absl::string_view kPrefix = "virtual:";
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;
enum Kind : char { kHello = 'h', kData = 'd', kControl = 'c', kClosed = 'x' };

}  // namespace

class VirtualEndpoint final : public Endpoint {
 public:
  // `due_ns`: the time by which the connection must be established.
  VirtualEndpoint(VirtualTransport* transport, int peer, int64_t due_ns)
      : transport_(transport),
        peer_(peer),
        due_ns_(due_ns),
        queue_(this, transport->events_, &transport->completions_, kNoLimit) {
    Send(std::string(1, kHello));
  }
  ~VirtualEndpoint() override {
    Close(absl::AbortedError("endpoint destroyed"));
    transport_->endpoints_.erase(peer_);
  }

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override {
    if (end_.ok()) {
      std::string text(1, kData);
      text.append(reinterpret_cast<const char*>(&envelope), sizeof(envelope));
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      Send(std::move(text));
    }
    transport_->completions_.Add(done, end_, static_cast<int64_t>(bytes.size()));
    transport_->Ring();
  }
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override {
    queue_.Post(envelope, bytes, done, hint);
    transport_->Ring();
  }
  bool HasEarly(Tag tag) const override { return queue_.HasEarly(tag); }
  void SendControl(absl::string_view message) override {
    if (end_.ok()) {
      Send(absl::StrCat(std::string(1, kControl), message));
    }
  }
  void Revoke(Context mine, Context, const absl::Status& why) override {
    std::vector<uint64_t> refused;
    queue_.Revoke(mine, why, &refused);
  }
  void Close(const absl::Status& why) override {
    if (end_.ok()) {
      Send(absl::StrCat(std::string(1, kClosed), why.message()));
      End(why.ok() ? absl::AbortedError("closed") : why);
    }
  }
  std::string peer_address() const override { return absl::StrCat(kPrefix, peer_); }
  // Only a constant delay can be measured.
  int64_t round_trip_ns() const override {
    const VirtualNetwork::Delays& delays = transport_->world_->network().delays();
    return delays.constant() ? 2 * delays.least_ns : 0;
  }

  // Called by Poll.
  void Take(absl::string_view text) {
    if (!end_.ok()) {
      return;
    }
    connected_ = true;
    const char kind = text[0];
    text.remove_prefix(1);
    if (kind == kData) {
      Envelope envelope;
      std::memcpy(static_cast<void*>(&envelope), text.data(), sizeof(envelope));
      text.remove_prefix(sizeof(envelope));
      if (const absl::Status status = queue_.Deliver(envelope, AsBytes(text)); !status.ok()) {
        Lose(status);
      }
    } else if (kind == kControl) {
      transport_->events_->OnControl(*this, text);
    } else if (kind == kClosed) {
      Lose(AsPeerEnded(absl::UnavailableError(absl::StrCat("closed by the peer: ", text))));
    }
  }
  // A path that is not established yet is not lost: the peer is dialled again until the time is up.
  void TakeLoss(bool proven) {
    if (connected_) {
      const absl::Status why = absl::UnavailableError("the path is lost");
      Lose(proven ? AsPeerEnded(why) : why);
    }
  }
  void Attend(int64_t now_ns) {
    if (!connected_ && now_ns >= due_ns_) {
      Lose(absl::UnavailableError("the peer could not be reached in time"));
    }
  }

 private:
  void Send(std::string text) {
    transport_->world_->network().Send(transport_->process_, peer_, std::move(text));
  }
  void End(const absl::Status& why) {
    end_ = why;
    queue_.FailAll(why);
    transport_->Ring();
  }
  void Lose(const absl::Status& why) {
    if (end_.ok()) {
      End(why);
      transport_->events_->OnLost(*this, why);
    }
  }

  VirtualTransport* const transport_;
  const int peer_;
  const int64_t due_ns_;
  bool connected_ = false;
  absl::Status end_;
  MatchQueue queue_;
};

VirtualTransport::VirtualTransport(VirtualWorld* world, const TransportConfig& config,
                                   Events* events)
    : world_(world),
      process_(world->process()),
      events_(events),
      connect_timeout_ns_(config.connect_timeout_ns),
      wait_fd_(world->OpenDescriptor()) {
  world->Attach(process_, this);
}

VirtualTransport::~VirtualTransport() {
  world_->Attach(process_, nullptr);
  world_->CloseDescriptor(wait_fd_);
}

std::string VirtualTransport::address() const {
  return absl::StrCat(kPrefix, process_);
}
bool VirtualTransport::Reaches(absl::string_view remote) const {
  return absl::StartsWith(remote, kPrefix) && remote != address();
}

void VirtualTransport::Ring() {
  world_->CountOf(wait_fd_) = 1;
  world_->Poke(process_);
}

absl::StatusOr<std::unique_ptr<Endpoint>> VirtualTransport::Connect(const PeerId&,
                                                                    absl::string_view remote) {
  int peer = -1;
  if (!absl::SimpleAtoi(absl::StripPrefix(remote, kPrefix), &peer)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", remote, "\" is no virtual address"));
  }
  auto endpoint = std::make_unique<VirtualEndpoint>(
      this, peer, world_->LocalNow(process_) + connect_timeout_ns_);
  endpoints_[peer] = endpoint.get();
  for (Event& event : early_[peer]) {
    arrived_.push_back(std::move(event));
  }
  early_.erase(peer);
  world_->network().On(process_, world_->network().now() + connect_timeout_ns_,
                       [world = world_, process = process_] {
                         if (VirtualTransport* const here = world->TransportOf(process)) {
                           here->Ring();
                         }
                       });
  Ring();
  return endpoint;
}

void VirtualTransport::OnMessage(int from, const std::string& text) {
  arrived_.push_back({from, false, false, text});
  Ring();
}
void VirtualTransport::OnLost(int peer, bool proven) {
  arrived_.push_back({peer, true, proven, ""});
  Ring();
}

void VirtualTransport::Take(const Event& event) {
  const auto endpoint = endpoints_.find(event.from);
  if (endpoint == endpoints_.end()) {
    early_[event.from].push_back(event);
  } else if (event.lost) {
    endpoint->second->TakeLoss(event.proven);
  } else {
    endpoint->second->Take(event.text);
  }
}

int VirtualTransport::Poll() {
  world_->CountOf(wait_fd_) = 0;
  int events = 0;
  for (; !arrived_.empty(); ++events) {
    const Event event = std::move(arrived_.front());
    arrived_.pop_front();
    Take(event);
  }
  const int64_t now = world_->LocalNow(process_);
  for (const auto& [peer, endpoint] : endpoints_) {
    endpoint->Attend(now);
  }
  return events + completions_.Run();
}

bool VirtualTransport::Arm() {
  return arrived_.empty() && completions_.empty();
}

}  // namespace entrain

// entrain::TransportRegistry
absl::Span<const entrain::TransportFactory> Replaced() __asm__(
    "__wrap__ZN7entrain17TransportRegistryEv");
absl::Span<const entrain::TransportFactory> Real() __asm__(
    "__real__ZN7entrain17TransportRegistryEv");
absl::Span<const entrain::TransportFactory> Replaced() {
  static const entrain::TransportFactory only = {
      "inproc",
      [](const entrain::TransportConfig& config,
         entrain::Events* events) -> absl::StatusOr<std::unique_ptr<entrain::Transport>> {
        return std::make_unique<entrain::VirtualTransport>(entrain::VirtualWorld::OfFiber(), config,
                                                           events);
      }};
  return entrain::VirtualWorld::OfFiber() == nullptr
             ? Real()
             : absl::Span<const entrain::TransportFactory>(&only, 1);
}
