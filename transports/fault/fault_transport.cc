#include "transports/fault/fault_transport.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "transports/timed_wait.h"

namespace entrain {
namespace {

// The state that all endpoints of one transport share. Must outlive the endpoints.
struct FaultShared {
  std::shared_ptr<FaultLink> link;
  CompletionList completions;
  std::vector<class FaultEndpoint*> endpoints;
};

class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(FaultShared* shared, std::unique_ptr<Endpoint> beneath)
      : shared_(shared), beneath_(std::move(beneath)), lane_{beneath_.get()} {
    shared_->endpoints.push_back(this);
  }
  ~FaultEndpoint() override {
    Close(absl::AbortedError("endpoint destroyed"));
    auto& all = shared_->endpoints;
    all.erase(std::find(all.begin(), all.end(), this));
  }

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override {
    if (ended_) {
      beneath_->PostSend(envelope, bytes, done);  // the transport beneath reports why the send
                                                  // fails
    } else {
      shared_->link->Post(&lane_, envelope, bytes, done);
    }
  }
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override {
    beneath_->PostRecv(envelope, bytes, done, hint);
  }
  absl::Status Release(Loan* loan) override { return beneath_->Release(loan); }
  bool HasEarly(Tag tag) const override { return beneath_->HasEarly(tag); }
  void SendControl(absl::string_view message) override { beneath_->SendControl(message); }
  bool SendUrgent(absl::string_view message) override { return beneath_->SendUrgent(message); }
  void Revoke(Context mine, Context theirs, const absl::Status& why) override {
    shared_->link->Drop(&lane_, theirs, why, &shared_->completions);
    beneath_->Revoke(mine, theirs, why);
  }
  void Close(const absl::Status& why) override {
    End(why);
    beneath_->Close(why);
  }
  std::string peer_address() const override { return beneath_->peer_address(); }
  std::string Explain() const override { return beneath_->Explain(); }
  int64_t round_trip_ns() const override { return beneath_->round_trip_ns(); }
  uint64_t received() const override { return beneath_->received(); }

  const Endpoint* beneath() const { return beneath_.get(); }
  bool ended() const { return ended_; }
  // Sends nothing more over the link, and fails this endpoint's messages that are on the link.
  void End(const absl::Status& why) {
    ended_ = true;
    shared_->link->Drop(&lane_, std::nullopt, why, &shared_->completions);
  }

 private:
  FaultShared* const shared_;
  const std::unique_ptr<Endpoint> beneath_;
  FaultLane lane_;
  bool ended_ = false;
};

class FaultTransport final : public Transport, private Events {
 public:
  FaultTransport(std::shared_ptr<FaultLink> link, Events* events, std::unique_ptr<TimedWait> wait)
      : events_(events), wait_(std::move(wait)) {
    shared_.link = std::move(link);
  }
  absl::Status Wrap(const TransportFactory& beneath, const TransportConfig& config) {
    ENTRAIN_ASSIGN_OR_RETURN(beneath_, beneath.create(config, this));
    return wait_->Add(beneath_->wait_fd());
  }

  Traits traits() const override {
    const FaultPlan& plan = link().plan();
    Traits traits = beneath_->traits();
    traits.latency_ns += plan.latency_ns + plan.jitter_ns / 2;
    if (plan.bytes_per_second > 0) {
      for (double* rate : {&traits.bytes_per_second, &traits.host_bytes_per_second}) {
        *rate = std::min(*rate, static_cast<double>(plan.bytes_per_second));
      }
    }
    return traits;
  }
  std::string address() const override { return beneath_->address(); }
  bool Reaches(absl::string_view remote) const override { return beneath_->Reaches(remote); }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override {
    ENTRAIN_ASSIGN_OR_RETURN(auto endpoint, beneath_->Connect(peer, remote));
    return std::make_unique<FaultEndpoint>(&shared_, std::move(endpoint));
  }
  void Retire(const SharedRegion& region) override { beneath_->Retire(region); }
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return wait_->fd(); }

 private:
  // Events of the transport beneath. `from` is an endpoint of that transport, so these functions
  // replace it by the FaultEndpoint that wraps it.
  bool Accepts(Context context) override { return events_->Accepts(context); }
  void OnEarly(Endpoint& from, const Envelope& envelope) override {
    events_->OnEarly(Above(from), envelope);
  }
  void OnControl(Endpoint& from, absl::string_view message) override {
    events_->OnControl(Above(from), message);
  }
  void OnLost(Endpoint& from, const absl::Status& why) override {
    Above(from).End(why);
    events_->OnLost(Above(from), why);
  }

  FaultLink& link() const { return *shared_.link; }
  FaultEndpoint& Above(const Endpoint& beneath) const {
    return **std::find_if(shared_.endpoints.begin(), shared_.endpoints.end(),
                          [&](FaultEndpoint* one) { return one->beneath() == &beneath; });
  }
  bool AllEnded() const {
    return std::all_of(shared_.endpoints.begin(), shared_.endpoints.end(),
                       [](FaultEndpoint* endpoint) { return endpoint->ended(); });
  }
  int CutAll();

  FaultShared shared_;
  Events* const events_;
  const std::unique_ptr<TimedWait> wait_;
  std::unique_ptr<Transport> beneath_;
  bool armed_ = false;
};

int FaultTransport::Poll() {
  if (std::exchange(armed_, false)) {
    wait_->ClearTimer();
  }
  int events = CutAll();
  events += link().HandOver();
  events += beneath_->Poll();
  return events + shared_.completions.Run();
}

bool FaultTransport::Arm() {
  const Deadline wake = std::min(link().next(), AllEnded() ? Deadline::Never() : link().cut_at());
  if (!shared_.completions.empty() || wake.Passed(link().clock().Now()) || !beneath_->Arm()) {
    return false;
  }
  armed_ = true;
  wait_->SetTimer(wake, link().clock());
  return true;
}

int FaultTransport::CutAll() {
  if (link().plan().cut_ns == 0 || !link().cut_at().Passed(link().clock().Now())) {
    return 0;
  }
  const absl::Status why = absl::UnavailableError("cut, as ENTRAIN_FAULT asked");
  int cut = 0;
  for (FaultEndpoint* endpoint : shared_.endpoints) {
    if (!endpoint->ended()) {
      endpoint->Close(why);
      events_->OnLost(*endpoint, why);
      ++cut;
    }
  }
  return cut;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateFaultTransport(std::shared_ptr<FaultLink> link,
                                                                const TransportFactory& beneath,
                                                                const TransportConfig& config,
                                                                Events* events) {
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<TimedWait> wait, TimedWait::Create());
  auto transport = std::make_unique<FaultTransport>(std::move(link), events, std::move(wait));
  ENTRAIN_RETURN_IF_ERROR(transport->Wrap(beneath, config));
  return transport;
}

}  // namespace entrain
