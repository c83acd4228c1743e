#include "transports/tcp/tcp_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/interfaces.h"
#include "lib/net/listener.h"
#include "transports/tcp/acceptor.h"
#include "transports/tcp/tcp_address.h"
#include "transports/tcp/tcp_endpoint.h"
#include "transports/tcp/tcp_sockets.h"
#include "transports/timed_wait.h"

namespace entrain {
namespace {

// Up to this number of sockets, Poll reads the sockets directly. If there are more, it asks epoll.
constexpr int kDirectReads = 4;
// In each kScanEvery-th call, Poll asks epoll about all sockets.
constexpr unsigned kScanEvery = 32;
// While a path waits for room in the windows of its streams, it looks for room this often.
constexpr int64_t kRoomEvery = kMillisecond;

class TcpTransport final : public Transport, public TcpShared {
 public:
  TcpTransport(const TransportConfig& config, const PathSettings& settings, Events* events,
               std::unique_ptr<TimedWait> wait, Listener listener)
      : TcpShared(events, std::move(wait)),
        config_(config),
        settings_(settings),
        address_(TcpAddress::OfListener(listener.address)),
        acceptor_(config_, this, std::move(listener)) {}
  absl::Status Open() { return acceptor_.Open(); }

  Traits traits() const override { return {"tcp", Medium::kNetwork, 15'000, 3e9, 9e9}; }
  std::string address() const override { return address_.ToString(); }
  bool Reaches(absl::string_view remote) const override {
    const absl::StatusOr<TcpAddress> parsed = TcpAddress::Parse(remote);
    return parsed.ok() && address_.Reaches(*parsed);
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override;
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return waiter->fd(); }

 private:
  void OnConnected(TcpEndpoint* endpoint, PathSockets sockets) override {
    endpoint->Attach(std::move(sockets));
  }
  bool OnFurther(const PeerId& peer, const ConnectionId& connection, const ConnectionId& id,
                 Channel* channel) override;
  void DialStream(TcpEndpoint* endpoint) override { acceptor_.DialStream(endpoint); }
  void OnWatched(TcpEndpoint* endpoint, int fd) override { by_fd_[fd] = endpoint; }
  void OnUnwatched(int fd) override { by_fd_.erase(fd); }
  void OnClosedEarly(TcpEndpoint* endpoint, const absl::Status& why) override {
    acceptor_.Leave(endpoint, why);
  }
  void OnDisconnected(TcpEndpoint* endpoint) override { acceptor_.Forget(endpoint); }
  void OnDestroyed(TcpEndpoint* endpoint) override;

  int FlushPending();
  int ReadUnparsed();
  int ReadExpected();
  int Scan();
  int Report();

  const TransportConfig config_;
  const PathSettings settings_;
  const TcpAddress address_;
  Acceptor acceptor_;
  std::vector<TcpEndpoint*> endpoints_;  // null: the endpoint is destroyed
  absl::flat_hash_map<int, TcpEndpoint*> by_fd_;
  unsigned turn_ = 0;
  bool armed_ = false;
};

absl::StatusOr<std::unique_ptr<Endpoint>> TcpTransport::Connect(const PeerId& peer,
                                                                absl::string_view remote) {
  ENTRAIN_ASSIGN_OR_RETURN(const TcpAddress parsed, TcpAddress::Parse(remote));
  const Deadline by = Deadline::After(config_.connect_timeout_ns, *config_.clock);
  const bool dials = config_.self < peer;
  auto endpoint = std::make_unique<TcpEndpoint>(
      this, PathTarget{.peer = peer, .address = parsed.address, .dials = dials, .connect_by = by},
      settings_);
  endpoints_.push_back(endpoint.get());
  ++paths;
  if (dials) {
    acceptor_.Dial(endpoint.get(), parsed.address);
  } else {
    acceptor_.Expect(endpoint.get());
  }
  return endpoint;
}

bool TcpTransport::OnFurther(const PeerId& peer, const ConnectionId& connection,
                             const ConnectionId& id, Channel* channel) {
  for (TcpEndpoint* endpoint : endpoints_) {
    if (endpoint != nullptr && endpoint->connected() && endpoint->target().peer == peer &&
        endpoint->connection() == connection) {
      endpoint->OnStreamAccepted(std::move(*channel), id);
      return true;
    }
  }
  return false;
}

void TcpTransport::OnDestroyed(TcpEndpoint* endpoint) {
  --paths;
  std::replace(endpoints_.begin(), endpoints_.end(), endpoint, static_cast<TcpEndpoint*>(nullptr));
}

int TcpTransport::FlushPending() {
  int events = 0;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (TcpEndpoint* endpoint = endpoints_[i]; endpoint != nullptr && endpoint->pending()) {
      events += endpoint->Flush();
    }
  }
  return events;
}

// Handles bytes that TryRecv has read and not taken. Epoll does not report these bytes any more.
int TcpTransport::ReadUnparsed() {
  int events = 0;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (TcpEndpoint* endpoint = endpoints_[i]; endpoint != nullptr && endpoint->unparsed()) {
      events += endpoint->Read();
    }
  }
  return events;
}

// Reads the sockets from which a message is expected. All other events (control, early messages,
// the peer's end, strangers) may wait until Poll asks epoll.
int TcpTransport::ReadExpected() {
  TcpEndpoint* direct[kDirectReads];
  int count = 0;
  for (TcpEndpoint* endpoint : endpoints_) {
    if (endpoint != nullptr && endpoint->expecting()) {
      if (count == kDirectReads || endpoint->long_path()) {
        return Scan();
      }
      direct[count++] = endpoint;
    }
  }
  // After a sleep, asks epoll, because any socket may have woken the thread. Otherwise asks epoll
  // only in some turns: if the caller waits for another transport, epoll would cost more than the
  // rest of the turn.
  if (std::exchange(armed_, false) || acceptor_.meeting() || ++turn_ % kScanEvery == 0) {
    return Scan();
  }
  int events = 0;
  for (int i = 0; i < count; ++i) {
    events += direct[i]->connected() ? direct[i]->Read() : 0;  // an event of one endpoint may close
                                                               // another
  }
  return events;
}

int TcpTransport::Scan() {
  int events = 0;
  waiter->ForEachReady([&](int fd) {
    const auto path = by_fd_.find(fd);
    events += path != by_fd_.end() ? path->second->OnReady(fd) : acceptor_.OnReady(fd);
  });
  return events + acceptor_.Progress();
}

int TcpTransport::Report() {
  int events = 0;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    events += endpoints_[i] == nullptr ? 0 : endpoints_[i]->Report();
  }
  return events;
}

int TcpTransport::Poll() {
  waiter->ClearTimer();
  endpoints_.erase(std::remove(endpoints_.begin(), endpoints_.end(), nullptr), endpoints_.end());
  int events = FlushPending();
  events += ReadUnparsed();
  events += ReadExpected();
  events += Report();
  events += completions.Run();
  if (events > 0) {
    events += FlushPending();  // CTS, and sends posted by completions
  }
  return events;
}

bool TcpTransport::Arm() {
  if (!completions.empty()) {
    return false;
  }
  bool soon = false;
  for (TcpEndpoint* endpoint : endpoints_) {
    if (endpoint != nullptr && !endpoint->Arm()) {
      return false;
    }
    soon = soon || (endpoint != nullptr && endpoint->waits_for_streams());
  }
  const Deadline due = acceptor_.wake_at();
  waiter->SetTimer(soon ? std::min(due, Deadline::After(kRoomEvery, *config_.clock)) : due,
                   *config_.clock);
  armed_ = true;
  return true;
}

}  // namespace

absl::StatusOr<int> ParseTcpStreams(absl::string_view text) {
  int streams = 0;
  if (!text.empty() &&
      (!absl::SimpleAtoi(text, &streams) || streams < 1 || streams > TcpStreams::kMost)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": expected a number from 1 to ", TcpStreams::kMost));
  }
  return streams;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportConfig& config,
                                                              Events* events) {
  const Stop stop{Deadline::After(config.connect_timeout_ns)};
  ENTRAIN_ASSIGN_OR_RETURN(const Address local,
                           ChooseLocalAddress(config.interface_filter, config.route_to, stop));
  const absl::StatusOr<int> streams = ParseTcpStreams(config.tcp_streams);
  if (!streams.ok()) {
    return Annotate(streams.status(), "ENTRAIN_TCP_STREAMS");
  }
  if (const absl::Status status = CheckTcpCongestion(config.tcp_congestion); !status.ok()) {
    return Annotate(status, "ENTRAIN_TCP_CONGESTION");
  }
  const absl::StatusOr<KeepAlive> keep_alive = ParseKeepAlive(config.keep_alive);
  if (!keep_alive.ok()) {
    return Annotate(keep_alive.status(), "ENTRAIN_KEEPALIVE");
  }
  ENTRAIN_ASSIGN_OR_RETURN(const PortRange ports, ParsePorts(config.ports));
  ENTRAIN_ASSIGN_OR_RETURN(Listener listener, OpenListener(local, ports));
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<TimedWait> wait, TimedWait::Create());
  const PathSettings settings = {*streams, config.tcp_congestion, *keep_alive,
                                 config.least_round_trip_ns};
  auto transport = std::make_unique<TcpTransport>(config, settings, events, std::move(wait),
                                                  std::move(listener));
  ENTRAIN_RETURN_IF_ERROR(transport->Open());
  return transport;
}

}  // namespace entrain
