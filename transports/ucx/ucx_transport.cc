#include "transports/ucx/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/key_file.h"
#include "transports/timed_wait.h"
#include "transports/ucx/devices.h"
#include "transports/ucx/ucx_address.h"
#include "transports/ucx/ucx_endpoint.h"
#include "transports/ucx/ways.h"

namespace entrain {
namespace ucx {
namespace {

constexpr int64_t kDepartTime = kSecond;  // limit of the wait for the peer's CLOSE
// time limit for the last messages when the transport is destroyed
constexpr int64_t kLastWords = 20 * kMillisecond;
constexpr int64_t kConnecting = 500 * kMillisecond;  // time limit, when the transport is destroyed,
                                                     // for peers that have not connected
constexpr int64_t kLookAgain = 500 * kMicrosecond;   // longest sleep while UCX has unsent packets:
                                                     // UCX does not wake a thread when room becomes
                                                     // free
// interval between two checks of the peers' processes while the transport is polled
constexpr int64_t kLookEvery = kMillisecond;
constexpr unsigned kPollsPerClock = 8;
constexpr size_t kMaxArrivals = 4096;

class UcxTransport final : public Transport, public Shared, private Sink {
 public:
  UcxTransport(const TransportConfig& config, Events* events, std::unique_ptr<TimedWait> wait)
      : Shared(events), config_(config), wait_(std::move(wait)) {}
  ~UcxTransport() override;
  absl::Status Open();

  Traits traits() const override { return {"ucx", medium_, 2'000, 8e9, 8e9}; }
  std::string address() const override { return address_.ToString(); }
  bool Reaches(absl::string_view remote) const override {
    const absl::StatusOr<UcxAddress> parsed = UcxAddress::Parse(remote);
    return parsed.ok() && address_.Reaches(*parsed);
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override;
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return wait_->fd(); }

 private:
  void OnDestroyed(UcxEndpoint* endpoint) override;
  Deadline DepartBy(const Wire& wire) const override;
  void OnPacket(const Header& header, ConstBytes payload) override;
  void OnHello(const Header& header, ConstBytes payload);
  void Introduce(Wire* wire, ConstBytes hello);
  void Handle(Wire* wire, const PacketHeader& header, ConstBytes payload);
  void HandleNext(Wire* wire);

  void WatchProcess(Wire* wire, const UcxAddress& peer);
  bool TimeToLook();
  void LookAtProcesses();
  int FlushEndpoints();
  int Report();
  int TendWires();
  bool Unsettled() const;

  const TransportConfig config_;
  const std::unique_ptr<TimedWait> wait_;
  std::unique_ptr<Worker> worker_;
  Medium medium_ = Medium::kNetwork;
  UcxAddress address_;
  std::vector<UcxEndpoint*> endpoints_;  // null: the endpoint is destroyed
  std::vector<std::unique_ptr<Wire>> wires_;
  absl::flat_hash_map<uint64_t, Wire*> by_path_;
  std::map<PeerId, Wire*> by_peer_;         // peers for which Connect was called; null: gone
  std::map<PeerId, std::string> arrivals_;  // HELLOs of peers for which Connect was not called yet
  bool armed_ = false;
  unsigned polls_ = 0;
  int64_t look_at_ = 0;
  int handled_ = 0;          // number of packets handled in this turn
  bool progressed_ = false;  // UCX has done something in this turn
  bool quiet_ = true;        // no wire is connecting, departing or closing
};

absl::Status UcxTransport::Open() {
  const Ways ways = WaysOf(GetEnv("UCX_TLS"));
  ENTRAIN_RETURN_IF_ERROR(CheckStrangers(ways));
  const std::vector<RdmaPort> rdma = ListRdmaPorts();
  medium_ = rdma.empty() ? Medium::kNetwork : Medium::kFabric;
  ENTRAIN_ASSIGN_OR_RETURN(const DeviceChoice devices, ChooseDevices(config_, rdma, ways.tcp));
  if (devices.names.empty() && !ways.sm && !GetEnv("UCX_NET_DEVICES").has_value()) {
    return NoWay();
  }
  ENTRAIN_ASSIGN_OR_RETURN(worker_, Worker::Create(devices.names, this));
  char name[65] = "";
  gethostname(name, sizeof(name) - 1);
  address_.version = absl::StrCat(worker_->ucx().major, ".", worker_->ucx().minor);
  address_.pid = getpid();
  address_.name = name;
  address_.pids = PidsOfThisProcess();
  address_.net = devices.net;
  address_.worker = worker_->address();
  address_.host = config_.host_id;
  return wait_->Add(worker_->event_fd());
}

// Sends the last messages of endpoints, within short time limits.
UcxTransport::~UcxTransport() {
  if (worker_ == nullptr) {
    return;
  }
  const auto progress_while = [this](bool (*condition)(Wire*), int64_t at_most) {
    const Deadline by = Deadline::After(at_most);
    const auto holds = [&](const std::unique_ptr<Wire>& wire) { return condition(wire.get()); };
    while (std::any_of(wires_.begin(), wires_.end(), holds) && !by.Passed(Clock::Real().Now())) {
      worker_->Progress();
    }
  };
  // Waits until the connections are established: if a peer disappears before that, UCX 1.13 ends
  // this process.
  progress_while([](Wire* wire) { return !wire->Connected(); }, kConnecting);
  progress_while(
      [](Wire* wire) {
        wire->Flush(0);
        return !wire->Flushed();
      },
      kLastWords);
  for (const std::unique_ptr<Wire>& wire : wires_) {
    wire->StartClose();
  }
  // This wait depends only on local work, not on a peer.
  progress_while(
      [](Wire* wire) {
        wire->CheckClose();
        return !wire->closed();
      },
      kSecond);
  for (const std::unique_ptr<Wire>& wire : wires_) {
    wire->Abandon();
  }
  wait_->Remove(worker_->event_fd());
  // The worker is destroyed before the wires, because it may still call them for cancelled
  // requests.
  worker_.reset();
}

absl::StatusOr<std::unique_ptr<Endpoint>> UcxTransport::Connect(const PeerId& peer,
                                                                absl::string_view remote) {
  ENTRAIN_ASSIGN_OR_RETURN(const UcxAddress parsed, UcxAddress::Parse(remote));
  if (peer == config_.self || by_peer_.count(peer) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ucx: ", peer == config_.self ? "this process itself" : "connected before",
                     ": ", parsed.process()));
  }
  if (parsed.host != address_.host && !config_.security.MayLeaveHostPlain()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ucx: plain traffic to another host (", parsed.process(),
                     ") is refused without a key. ", kHowToSecure));
  }
  auto endpoint = std::make_unique<UcxEndpoint>(this, config_, peer, parsed.process());
  endpoints_.push_back(endpoint.get());
  auto wire = std::make_unique<Wire>(worker_.get(), peer, endpoint->lender(), endpoint.get());
  if (const absl::Status status = wire->Open(parsed.worker); !status.ok()) {
    endpoint->Lose(status);
    return endpoint;
  }
  Wire* const opened = wire.get();
  WatchProcess(opened, parsed);
  wires_.push_back(std::move(wire));
  by_path_[opened->path()] = opened;
  by_peer_[peer] = opened;
  endpoint->Attach(opened);
  if (const auto here = arrivals_.find(peer); here != arrivals_.end()) {
    const std::string hello = std::move(here->second);
    arrivals_.erase(here);
    Introduce(opened, {reinterpret_cast<const std::byte*>(hello.data()), hello.size()});
  }
  return endpoint;
}

// Watches the peer's process by a pidfd. UCX also checks processes, but takes a dead process for
// alive until its parent has waited for it.
void UcxTransport::WatchProcess(Wire* wire, const UcxAddress& peer) {
  if (!address_.pids.empty() && peer.pids == address_.pids) {
    Fd fd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));  // close-on-exec by default
    if (fd.valid() && wait_->Add(fd.get()).ok()) {
      wire->WatchProcess(std::move(fd));
    }
  }
}

bool UcxTransport::TimeToLook() {
  if (++polls_ % kPollsPerClock != 0) {
    return false;
  }
  const int64_t now = config_.clock->Now();
  return now >= look_at_ && (look_at_ = now + kLookEvery) > 0;
}

void UcxTransport::LookAtProcesses() {
  wait_->ForEachReady([&](int fd) {
    for (const std::unique_ptr<Wire>& wire : wires_) {
      if (wire->process_fd() == fd) {
        wait_->Remove(fd);
        wire->ProcessDied();
      }
    }
  });
}

void UcxTransport::OnDestroyed(UcxEndpoint* endpoint) {
  std::replace(endpoints_.begin(), endpoints_.end(), endpoint, static_cast<UcxEndpoint*>(nullptr));
}

// If the peer has not yet sent HELLO, this side cannot send CLOSE yet. So the deadline is longer.
Deadline UcxTransport::DepartBy(const Wire& wire) const {
  return Deadline::After(wire.introduced() ? kDepartTime : config_.connect_timeout_ns,
                         *config_.clock);
}

void UcxTransport::OnPacket(const Header& header, ConstBytes payload) {
  ++handled_;
  if (header.packet.type == PacketType::kHello) {
    OnHello(header, payload);
    return;
  }
  const auto found = by_path_.find(header.path);
  if (found == by_path_.end()) {
    return;  // the packet belongs to a path that is gone, or comes from a stranger
  }
  Wire* const wire = found->second;
  if (wire->Arrived(header, payload)) {
    Handle(wire, header.packet, payload);
    HandleNext(wire);
  }
}

void UcxTransport::HandleNext(Wire* wire) {
  PacketHeader header;
  std::string payload;
  while (wire->Next(&header, &payload)) {
    Handle(wire, header, {reinterpret_cast<const std::byte*>(payload.data()), payload.size()});
  }
}

void UcxTransport::OnHello(const Header& header, ConstBytes payload) {
  Card card;
  if (const absl::Status status = CheckUcxPacket(header.packet, payload.size()); !status.ok()) {
    ENTRAIN_LOG(kInfo, "ucx: dropped a hello: ", status.message());
    return;
  }
  std::memcpy(&card, payload.data(), sizeof(card));
  if (card.to != config_.self || card.path == 0 || header.number != 0) {
    ENTRAIN_LOG(kInfo, "ucx: dropped a hello that is not for this process");
    return;
  }
  if (const auto known = by_peer_.find(card.from); known != by_peer_.end()) {
    if (known->second != nullptr) {
      Introduce(known->second, payload);
    }
  } else if (arrivals_.size() < kMaxArrivals) {
    arrivals_.emplace(card.from,
                      std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
  }
}

void UcxTransport::Introduce(Wire* wire, ConstBytes hello) {
  if (wire->introduced()) {
    return;  // a second HELLO
  }
  Card card;
  std::memcpy(&card, hello.data(), sizeof(card));
  wire->Introduce(card.path);
  if (wire->owner() != nullptr) {
    wire->owner()->OnHello(hello.subspan(sizeof(card)));
  }
  wire->Arrived({.packet = {.type = PacketType::kHello}}, {});
  HandleNext(wire);
}

void UcxTransport::Handle(Wire* wire, const PacketHeader& header, ConstBytes payload) {
  if (header.type == PacketType::kClose) {
    wire->PeerClosed();
  }
  UcxEndpoint* const endpoint = wire->owner();
  if (endpoint == nullptr) {
    return;
  }
  if (const absl::Status status = CheckUcxPacket(header, payload.size()); !status.ok()) {
    endpoint->Lose(status);
  } else {
    endpoint->OnPacket(header, payload);
  }
}

int UcxTransport::FlushEndpoints() {
  int events = 0;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    events += endpoints_[i] == nullptr ? 0 : endpoints_[i]->Flush();
  }
  return events;
}

bool UcxTransport::Unsettled() const {
  return std::any_of(wires_.begin(), wires_.end(), [](const std::unique_ptr<Wire>& wire) {
    return wire->owner() == nullptr || !wire->owner()->up();
  });
}

// Handles wires that have failed, take too long to connect, or are departing.
int UcxTransport::TendWires() {
  int events = 0;
  const int64_t now = quiet_ ? 0 : config_.clock->Now();
  for (size_t i = 0; i < wires_.size();) {
    Wire* const wire = wires_[i].get();
    // When the worker has no more work, the last packets of the dead process have been handled.
    if (wire->dead() && !progressed_) {
      wire->Fail(AsPeerEnded(absl::UnavailableError("its process died")));
    }
    if (UcxEndpoint* const owner = wire->owner()) {
      if (!wire->failure().ok()) {
        owner->Lose(wire->failure());
      } else if (!quiet_ && !owner->up() && owner->connect_by().Passed(now)) {
        owner->Lose(absl::UnavailableError(absl::StrCat(
            "it did not connect within ", config_.connect_timeout_ns / kSecond, " s")));
      }
    }
    if (wire->owner() == nullptr) {
      events += wire->Flush(now);
    }
    if (wire->closed()) {
      if (wire->process_fd() >= 0) {
        wait_->Remove(wire->process_fd());
      }
      by_path_.erase(wire->path());
      by_peer_[wire->peer()] = nullptr;
      wire->Abandon();
      wires_.erase(wires_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return events;
}

int UcxTransport::Report() {
  int events = 0;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    events += endpoints_[i] == nullptr ? 0 : endpoints_[i]->Report();
  }
  return events;
}

int UcxTransport::Poll() {
  wait_->ClearTimer();
  endpoints_.erase(std::remove(endpoints_.begin(), endpoints_.end(), nullptr), endpoints_.end());
  int events = 0;
  // After a sleep, this block also runs if there is no path: the event that woke the thread must be
  // consumed.
  const bool woken = std::exchange(armed_, false);
  if (woken || !wires_.empty()) {
    if (woken || TimeToLook()) {
      LookAtProcesses();
    }
    quiet_ = !Unsettled();
    // Before it sends: if UCX sends to a process that is gone, it drops what it has not read from
    // that process. There may be the news of the failure for which the process has ended.
    handled_ = 0;
    progressed_ = worker_->Progress();
    events += handled_ + FlushEndpoints() + TendWires();
  }
  events += Report();
  events += completions.Run();
  if (events > 0) {
    events += FlushEndpoints();  // CTS, and sends posted by completions
    events += completions.Run();
  }
  return events;
}

bool UcxTransport::Arm() {
  if (!completions.empty()) {
    return false;
  }
  Deadline wake = Deadline::Never();
  for (const std::unique_ptr<Wire>& wire : wires_) {
    const UcxEndpoint* const owner = wire->owner();
    if ((!wire->failure().ok() || wire->dead()) && !wire->closing()) {
      return false;
    }
    if (wire->pending() || wire->closing()) {
      wake = std::min(wake, Deadline::After(kLookAgain, *config_.clock));
    } else if (owner == nullptr) {
      wake = std::min(wake, wire->depart_by());
    } else if (!owner->up()) {
      wake = std::min(wake, owner->connect_by());
    }
  }
  for (const UcxEndpoint* endpoint : endpoints_) {
    if (endpoint != nullptr && (endpoint->can_flush() || endpoint->reporting())) {
      return false;
    }
  }
  if (!worker_->Arm()) {
    return false;
  }
  wait_->SetTimer(wake, *config_.clock);
  armed_ = true;
  return true;
}

}  // namespace
}  // namespace ucx

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportConfig& config,
                                                              Events* events) {
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<TimedWait> wait, TimedWait::Create());
  auto transport = std::make_unique<ucx::UcxTransport>(config, events, std::move(wait));
  ENTRAIN_RETURN_IF_ERROR(transport->Open());
  return transport;
}

absl::Status UcxAbsence(bool named) {
  if (!named && ucx::ListRdmaPorts().empty()) {
    return absl::FailedPreconditionError("no RDMA device is up here, and it was not named");
  }
  const ucx::Ways ways = ucx::WaysOf(GetEnv("UCX_TLS"));
  if (!ways.tcp && !ways.sm && ucx::ListRdmaPorts().empty()) {
    return ucx::NoWay();
  }
  return ucx::LoadLibrary().status();
}

}  // namespace entrain
