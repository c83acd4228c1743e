#include "transports/inproc/inproc_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "transports/inproc/hub.h"
#include "transports/inproc/inbox.h"
#include "transports/inproc/inproc_endpoint.h"
#include "transports/timed_wait.h"

namespace entrain {
namespace {

class InprocTransport final : public Transport {
 public:
  InprocTransport(const TransportConfig& config, Events* events, std::shared_ptr<Inbox> inbox,
                  std::unique_ptr<TimedWait> wait)
      : inbox_(std::move(inbox)),
        wait_(std::move(wait)),
        instance_(Hub::OfThisProcess().Enter()),
        address_(Hub::OfThisProcess().AddressOf(instance_)),
        connect_timeout_ns_(config.connect_timeout_ns) {
    shared_.events = events;
    shared_.clock = config.clock;
  }
  ~InprocTransport() override { Hub::OfThisProcess().Leave(instance_); }

  Traits traits() const override { return {"inproc", Medium::kProcess, 600, 10e9, 20e9}; }
  std::string address() const override { return address_; }
  bool Reaches(absl::string_view remote) const override {
    const uint64_t other = Hub::OfThisProcess().InstanceOf(remote);
    return other != 0 && other != instance_;
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override;
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return wait_->fd(); }

 private:
  InprocShared shared_;
  const std::shared_ptr<Inbox> inbox_;
  const std::unique_ptr<TimedWait> wait_;
  const uint64_t instance_;
  const std::string address_;
  const int64_t connect_timeout_ns_;
  NoteBatch batch_;
  bool armed_ = false;
};

absl::StatusOr<std::unique_ptr<Endpoint>> InprocTransport::Connect(const PeerId&,
                                                                   absl::string_view remote) {
  if (!Reaches(remote)) {
    return absl::InvalidArgumentError(
        absl::StrCat("inproc: \"", remote, "\" is not another rank of this process"));
  }
  const auto slot = static_cast<uint32_t>(shared_.endpoints.size());
  auto endpoint = std::make_unique<InprocEndpoint>(
      &shared_, slot, std::string(remote), Deadline::After(connect_timeout_ns_, *shared_.clock));
  shared_.endpoints.push_back(endpoint.get());
  Hub& hub = Hub::OfThisProcess();
  endpoint->Join(hub.Join(instance_, hub.InstanceOf(remote), inbox_, slot));
  return endpoint;
}

int InprocTransport::Poll() {
  if (std::exchange(armed_, false)) {
    inbox_->Disarm();
    wait_->ClearTimer();
  }
  int events = 0;
  if (inbox_->Take(&batch_)) {
    const std::byte* payload = batch_.payloads.data();
    for (const Note& note : batch_.notes) {
      if (InprocEndpoint* endpoint = shared_.endpoints[note.slot]) {
        endpoint->OnNote(note, {payload, note.payload_bytes});
      }
      payload += note.payload_bytes;
    }
    events += static_cast<int>(batch_.notes.size());
    batch_.Clear();
  }
  for (size_t i = 0; i < shared_.endpoints.size(); ++i) {
    if (InprocEndpoint* endpoint = shared_.endpoints[i]) {
      events += endpoint->Progress();
    }
  }
  return events + shared_.completions.Run();
}

bool InprocTransport::Arm() {
  Deadline wake;
  for (InprocEndpoint* endpoint : shared_.endpoints) {
    if (endpoint != nullptr && endpoint->busy()) {
      return false;
    }
    wake = endpoint == nullptr ? wake : std::min(wake, endpoint->wake_at());
  }
  if (!shared_.completions.empty() || !inbox_->Arm()) {
    return false;
  }
  armed_ = true;
  wait_->SetTimer(wake, *shared_.clock);
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateInprocTransport(const TransportConfig& config,
                                                                 Events* events) {
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Inbox> inbox, Inbox::Create());
  ENTRAIN_ASSIGN_OR_RETURN(std::unique_ptr<TimedWait> wait, TimedWait::Create());
  ENTRAIN_RETURN_IF_ERROR(wait->Add(inbox->fd()));
  return std::make_unique<InprocTransport>(config, events, std::move(inbox), std::move(wait));
}

}  // namespace entrain
