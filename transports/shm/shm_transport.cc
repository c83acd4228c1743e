#include "transports/shm/shm_transport.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/local_socket.h"
#include "transports/shm/shm_endpoint.h"

namespace entrain {
namespace shm {
namespace {

// interval between two checks of the sockets and pidfds while the transport is polled
constexpr int64_t kLookEvery = kMillisecond;
constexpr unsigned kPollsPerClock = 8;  // reading the clock costs as much as polling a ring
constexpr int64_t kRetryEvery = 10 * kMillisecond;
constexpr size_t kMaxArrivals = 1024;

// "PID/UID/NAME/HOST": the process, its user, its abstract socket, and the host with its namespaces
// (TransportConfig::host_id). HOST may contain slashes.
struct ParsedAddress {
  int pid = 0;
  uint32_t uid = 0;
  std::string name, host;
};

std::string ToString(const ParsedAddress& address) {
  return absl::StrCat(address.pid, "/", address.uid, "/", address.name, "/", address.host);
}

bool ParseAddress(absl::string_view text, ParsedAddress* out) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 3));
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &out->pid) ||
      !absl::SimpleAtoi(parts[1], &out->uid) || parts[2].empty()) {
    return false;
  }
  out->name = parts[2];
  out->host = parts[3];
  return true;
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(const TransportConfig& config, Events* events, const Options& options)
      : connect_timeout_ns_(config.connect_timeout_ns) {
    shared_.events = events;
    shared_.clock = config.clock;
    shared_.limits = options.limits;
    shared_.regions = config.regions;
    shared_.self.id = config.self;
    shared_.self.key = config.security.key;
    shared_.self.ring_bytes = options.limits.ring_bytes;
    shared_.self.pull = options.pull;
    shared_.self.cpus = options.cpus;
    RandomBytes(shared_.self.cookie.data(), shared_.self.cookie.size());
  }
  absl::Status Open(const std::string& host_id);

  Traits traits() const override { return {"shm", Medium::kHostMemory, 300, 9e9, 20e9}; }
  std::string address() const override { return ToString(address_); }
  bool Reaches(absl::string_view remote) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override;
  void Retire(const SharedRegion& region) override;
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return wait_->fd(); }

 private:
  struct Arrival {
    std::unique_ptr<Introduction> introduction;
    Deadline until;
  };
  bool TimeToLook();
  void Look();
  void Accept();
  bool Greet();
  bool Place(Arrival* arrival);
  void Disarm();

  const int64_t connect_timeout_ns_;
  std::unique_ptr<TimedWait> wait_;
  Fd listener_, doorbell_;
  ParsedAddress address_;
  Shared shared_;
  std::vector<Arrival> arrivals_;  // accepted connections that have no endpoint yet
  std::set<PeerId> met_;           // peers for which Connect was called
  bool armed_ = false, setting_up_ = false;
  unsigned polls_ = 0;
  int64_t look_at_ = 0;
};

absl::Status ShmTransport::Open(const std::string& host_id) {
  ENTRAIN_ASSIGN_OR_RETURN(wait_, TimedWait::Create());
  ENTRAIN_ASSIGN_OR_RETURN(listener_, ListenAbstract(&address_.name));
  doorbell_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  ENTRAIN_RETURN_IF_ERROR(wait_->Add(listener_.get()));
  ENTRAIN_RETURN_IF_ERROR(wait_->Add(doorbell_.get()));
  address_.pid = getpid();
  address_.uid = geteuid();
  address_.host = host_id;
  shared_.wait = wait_.get();
  shared_.self.doorbell = doorbell_.get();
  return absl::OkStatus();
}

bool ShmTransport::Reaches(absl::string_view remote) const {
  ParsedAddress other;
  return ParseAddress(remote, &other) && other.host == address_.host && other.uid == address_.uid &&
         other.name != address_.name;
}

absl::StatusOr<std::unique_ptr<Endpoint>> ShmTransport::Connect(const PeerId& peer,
                                                                absl::string_view remote) {
  ParsedAddress other;
  if (!ParseAddress(remote, &other) || !Reaches(remote)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: \"", remote, "\" is not another process of this host and user"));
  }
  if (peer == shared_.self.id || !met_.insert(peer).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: ", peer == shared_.self.id ? "this process itself" : "connected before",
                     ": \"", remote, "\""));
  }
  setting_up_ = true;
  return std::make_unique<ShmEndpoint>(&shared_, peer, other.pid, other.name,
                                       shared_.self.id < peer,
                                       Deadline::After(connect_timeout_ns_, *shared_.clock));
}

void ShmTransport::Retire(const SharedRegion& region) {
  for (ShmEndpoint* endpoint : shared_.endpoints) {
    if (endpoint != nullptr) {
      endpoint->Retire(region);
    }
  }
}

bool ShmTransport::TimeToLook() {
  if (armed_ || setting_up_) {
    return true;
  }
  if (++polls_ % kPollsPerClock != 0) {
    return false;
  }
  const int64_t now = shared_.clock->Now();
  if (now < look_at_) {
    return false;
  }
  look_at_ = now + kLookEvery;
  return true;
}

// Checks for events that no ring reports: connections, offers of memory, and deaths.
void ShmTransport::Look() {
  wait_->ForEachReady([&](int fd) {
    if (fd == doorbell_.get()) {
      uint64_t rings;
      [[maybe_unused]] const ssize_t ignored = read(fd, &rings, sizeof(rings));
      return;
    }
    if (fd == listener_.get()) {
      Accept();
      return;
    }
    for (ShmEndpoint* endpoint : shared_.endpoints) {
      if (endpoint != nullptr && endpoint->OnReady(fd)) {
        return;
      }
    }
  });
}

void ShmTransport::Accept() {
  while (arrivals_.size() < kMaxArrivals) {
    absl::StatusOr<Fd> fd = AcceptLocal(listener_.get());
    if (!fd.ok()) {
      ENTRAIN_LOG(kWarning, "shm: ", fd.status().message());
    }
    if (!fd.ok() || !fd->valid()) {
      return;
    }
    if (wait_->Add(fd->get(), EPOLLIN | EPOLLRDHUP).ok()) {
      arrivals_.push_back({std::make_unique<Introduction>(&shared_.self, *std::move(fd)),
                           Deadline::After(connect_timeout_ns_, *shared_.clock)});
    }
  }
}

// Continues the introductions of processes that have dialled, and those of closed endpoints.
// Returns true if any introduction is not finished.
bool ShmTransport::Greet() {
  const int64_t now = arrivals_.empty() ? 0 : shared_.clock->Now();
  for (size_t i = 0; i < arrivals_.size();) {
    Arrival& arrival = arrivals_[i];
    const absl::StatusOr<bool> step = arrival.introduction->Step();
    if (!step.ok()) {
      ENTRAIN_LOG(kDebug, "shm: a connection that came in: ", step.status().message());
    }
    if (!Place(&arrival) && step.ok() && !arrival.until.Passed(now)) {
      ++i;
      continue;
    }
    if (arrival.introduction != nullptr) {
      wait_->Remove(arrival.introduction->fd());
    }
    arrivals_.erase(arrivals_.begin() + static_cast<ptrdiff_t>(i));
  }
  auto& leaving = shared_.leaving;
  leaving.erase(std::remove_if(leaving.begin(), leaving.end(),
                               [](const auto& introduction) {
                                 return !introduction->Step().ok() || introduction->peer_known();
                               }),
                leaving.end());
  return !arrivals_.empty() || !leaving.empty();
}

// Gives the arrival to the endpoint that waits for its peer. Returns false if the peer's identity
// is not known yet, or if Connect was not called for this peer yet.
bool ShmTransport::Place(Arrival* arrival) {
  if (!arrival->introduction->peer_known()) {
    return false;
  }
  const PeerId& peer = arrival->introduction->peer();
  if (met_.count(peer) == 0) {
    return false;
  }
  for (ShmEndpoint* endpoint : shared_.endpoints) {
    if (endpoint != nullptr && endpoint->peer() == peer && shared_.self.id > peer) {
      wait_->Remove(arrival->introduction->fd());
      endpoint->Arrive(std::move(arrival->introduction));
      return true;
    }
  }
  return true;  // the endpoint was closed early. The caller closes the socket, which tells the peer
}

int ShmTransport::Poll() {
  if (TimeToLook()) {
    Look();
    Disarm();
    setting_up_ = Greet();
  }
  int events = 0;
  bool any_gone = false;
  for (size_t i = 0; i < shared_.endpoints.size(); ++i) {
    if (ShmEndpoint* endpoint = shared_.endpoints[i]) {
      events += endpoint->Poll();
    }
    // Poll may have destroyed the endpoint.
    any_gone |= shared_.endpoints[i] == nullptr;
    setting_up_ |= shared_.endpoints[i] != nullptr && shared_.endpoints[i]->connecting();
  }
  setting_up_ |= !shared_.leaving.empty();
  events += shared_.completions.Run();
  if (any_gone) {
    auto& all = shared_.endpoints;
    all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
  }
  return events;
}

bool ShmTransport::Arm() {
  if (!shared_.completions.empty()) {
    return false;
  }
  armed_ = true;
  bool quiet = true, timed = false;
  for (ShmEndpoint* endpoint : shared_.endpoints) {
    if (endpoint != nullptr) {
      quiet = quiet && endpoint->Arm();
      timed |= endpoint->connecting();
    }
  }
  if (quiet && (timed || !arrivals_.empty() || !shared_.leaving.empty())) {
    wait_->SetTimer(Deadline::After(kRetryEvery, *shared_.clock), *shared_.clock);
  }
  return quiet;
}

void ShmTransport::Disarm() {
  if (!std::exchange(armed_, false)) {
    return;
  }
  wait_->ClearTimer();
  for (ShmEndpoint* endpoint : shared_.endpoints) {
    if (endpoint != nullptr) {
      endpoint->Disarm();
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const TransportConfig& config,
                                                           Events* events, const Options& options) {
  auto transport = std::make_unique<ShmTransport>(config, events, options);
  ENTRAIN_RETURN_IF_ERROR(transport->Open(config.host_id));
  return transport;
}

}  // namespace shm

absl::StatusOr<std::unique_ptr<Transport>> CreateShmTransport(const TransportConfig& config,
                                                              Events* events) {
  return shm::CreateTransport(config, events, shm::Options());
}

}  // namespace entrain
