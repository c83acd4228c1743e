#include "lib/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

// Limits the memory that peers can make this process allocate.
constexpr size_t kMaxPremature = 4096;
// The context of control messages between processes. No communicator has this number. The text of
// such a message is a status (Causes). OK withdraws the last status.
constexpr Context kOfRuntimes = 0;

absl::string_view KeyOf(const PeerId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

}  // namespace

Engine::Engine(const SeatOptions& options)
    : clock_(*options.clock),
      seat_(*this, options),
      status_(seat_.status()),
      functions_(clock_),
      causes_(clock_, [this](const std::string& text) {
        const std::string message =
            Writer().Put(kOfRuntimes).PutRaw(text.data(), text.size()).Take();
        for (const auto& path : paths_) {
          path->endpoint->SendControl(message);
        }
        seat_.NeedFlush();
      }) {}

void Engine::AddTransport(std::unique_ptr<Transport> transport) {
  const absl::Status watched = seat_.Watch(transport->wait_fd(), transport->traits().name);
  if (status_.ok()) {
    status_ = watched;
  }
  transports_.push_back(std::move(transport));
}

void Engine::Shutdown() {
  seat_.Close();
  seat_.Turn();
  std::vector<std::shared_ptr<ContextOwner>> owners;
  for (auto& [context, owner] : owners_) {
    owners.push_back(owner);
  }
  for (auto& owner : owners) {
    owner->OnShutdown();
  }
  seat_.Turn();
  for (auto& path : paths_) {
    path->endpoint->Close(absl::AbortedError("the runtime was destroyed"));
  }
  seat_.Turn();  // runs the completions that Close caused
  owners_.clear();
  closed_owners_.clear();
  retiring_.clear();
  paths_.clear();
  transports_.clear();
}

// ---- The loop

int Engine::Poll() {
  int events = 0;
  for (auto& transport : transports_) {
    events += transport->Poll();
  }
  AfterPoll();
  return events;
}

void Engine::Flush() {
  for (auto& transport : transports_) {
    transport->Poll();  // AfterPoll handles the events of this Poll later
  }
}

void Engine::AfterPoll() {
  while (!attention_.empty() || !control_.empty() || !lost_.empty()) {
    auto control = std::exchange(control_, {});
    for (auto& message : control) {
      DispatchControl(std::move(message));
    }
    auto lost = std::exchange(lost_, {});
    for (auto& [endpoint, why] : lost) {
      std::vector<std::shared_ptr<ContextOwner>> owners;
      for (auto& [context, owner] : owners_) {
        owners.push_back(owner);
      }
      for (auto& owner : owners) {
        owner->OnLost(*endpoint, why);
      }
    }
    auto attention = std::exchange(attention_, {});
    for (ContextOwner* owner : attention) {
      owner->Attend();
    }
  }
  closed_owners_.clear();
  if (!retiring_.empty()) {
    const auto unused = [this](const auto& region) { return Retire(*region).ok(); };
    retiring_.erase(std::remove_if(retiring_.begin(), retiring_.end(), unused), retiring_.end());
  }
}

void Engine::DispatchControl(ControlMessage message) {
  Reader reader(message.text);
  const auto context = reader.Get<Context>();
  if (reader.ok() && context == kOfRuntimes) {
    if (path_of_endpoint_.contains(message.from)) {
      causes_.Hear(message.from, absl::string_view(message.text).substr(sizeof(Context)));
    }
    return;
  }
  const auto owner = owners_.find(context);
  if (reader.ok() && owner != owners_.end()) {
    const std::shared_ptr<ContextOwner> keep = owner->second;
    keep->OnControl(*message.from, absl::string_view(message.text).substr(sizeof(Context)));
  } else if (reader.ok() && Accepts(context) && premature_.size() < kMaxPremature) {
    premature_.push_back({context, message.from, {}, std::move(message.text)});
  }
}

Deadline Engine::next_deadline() const {
  Deadline next;
  for (auto& [context, owner] : owners_) {
    next = std::min(next, owner->next_tick());
  }
  return next;
}

void Engine::CheckDeadlines() {
  functions_.TellOfDone();
  const int64_t now = clock_.Now();
  std::vector<std::shared_ptr<ContextOwner>> due;
  for (auto& [context, owner] : owners_) {
    if (owner->next_tick().Passed(now)) {
      due.push_back(owner);
    }
  }
  for (auto& owner : due) {
    owner->OnTick(now);
  }
  if (!due.empty()) {
    AfterPoll();
  }
}

bool Engine::Arm() {
  return std::all_of(transports_.begin(), transports_.end(),
                     [](auto& transport) { return transport->Arm(); });
}

// ---- Contexts and paths

Context Engine::ReserveContext() {
  const uint32_t context = next_context_.fetch_add(1, std::memory_order_relaxed);
  if (context >= (1u << 16)) {
    return 0;
  }
  contexts_.Set(static_cast<Context>(context), kReserved);
  return static_cast<Context>(context);
}

void Engine::ReleaseContext(Context context) {
  contexts_.Set(context, kRevoked);
}

bool Engine::Accepts(Context context) {
  const uint8_t state = contexts_.Of(context);
  return state == kReserved || state == kOpen;
}

absl::StatusOr<Endpoint*> Engine::Connect(const PeerId& peer, size_t transport,
                                          absl::string_view address) {
  const auto found = path_of_peer_.find(KeyOf(peer));
  if (found != path_of_peer_.end()) {
    Path& path = *found->second;
    if (!path.status.ok()) {
      return Annotate(path.status, "an earlier connection to this process failed");
    }
    return path.endpoint.get();
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto endpoint, transports_[transport]->Connect(peer, address));
  auto path = std::make_unique<Path>();
  path->peer = peer;
  path->transport = transport;
  path->endpoint = std::move(endpoint);
  Endpoint* const result = path->endpoint.get();
  path_of_peer_[std::string(KeyOf(peer))] = path.get();
  path_of_endpoint_[result] = path.get();
  paths_.push_back(std::move(path));
  return result;
}

absl::Status Engine::PathStatus(const Endpoint* endpoint) const {
  const auto found = path_of_endpoint_.find(endpoint);
  return found == path_of_endpoint_.end() ? absl::OkStatus() : found->second->status;
}

std::shared_ptr<ContextOwner> Engine::WaitsElsewhere(const ContextOwner* asked) const {
  std::shared_ptr<ContextOwner> longest;
  for (const auto& [context, owner] : owners_) {
    const auto since = owner->waits_since();
    if (owner.get() != asked && since && (longest == nullptr || *since < *longest->waits_since())) {
      longest = owner;
    }
  }
  return longest;
}

void Engine::OpenContext(Context context, std::shared_ptr<ContextOwner> owner) {
  contexts_.Set(context, kOpen);
  ContextOwner& opened = *owner;
  owners_[context] = std::move(owner);
  auto premature = std::exchange(premature_, {});
  for (Premature& one : premature) {
    if (one.context != context) {
      if (Accepts(one.context)) {
        premature_.push_back(std::move(one));
      }
    } else if (one.envelope) {
      opened.OnEarly(*one.from, *one.envelope);
    } else {
      control_.push_back({one.from, std::move(one.text)});
    }
  }
}

absl::Status Engine::CheckUnused(ConstBytes bytes) const {
  for (const auto& [context, owner] : owners_) {
    if (const std::string user = owner->UserOf(bytes); !user.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("it is still used by ", user));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Retire(const SharedRegion& region) {
  ENTRAIN_RETURN_IF_ERROR(CheckUnused(region.whole));
  for (const auto& transport : transports_) {
    transport->Retire(region);
  }
  seat_.NeedFlush();
  return absl::OkStatus();
}

void Engine::RetireWhenUnused(std::shared_ptr<const SharedRegion> region) {
  if (!Retire(*region).ok()) {
    retiring_.push_back(std::move(region));
  }
}

void Engine::RevokeContext(Context context) {
  contexts_.Set(context, kRevoked);
}

void Engine::CloseContext(Context context) {
  RevokeContext(context);
  const auto found = owners_.find(context);
  if (found != owners_.end()) {
    closed_owners_.push_back(std::move(found->second));
    owners_.erase(found);
  }
}

void Engine::NeedAttention(ContextOwner* owner) {
  attention_.push_back(owner);
}

void Engine::OnEarly(Endpoint& from, const Envelope& envelope) {
  const Context context = envelope.tag.context();
  const auto owner = owners_.find(context);
  if (owner != owners_.end()) {
    owner->second->OnEarly(from, envelope);
  } else if (premature_.size() < kMaxPremature) {
    premature_.push_back({context, &from, envelope, {}});
  }
}

void Engine::OnControl(Endpoint& from, absl::string_view message) {
  control_.push_back({&from, std::string(message)});
}

void Engine::OnLost(Endpoint& from, const absl::Status& why) {
  const auto found = path_of_endpoint_.find(&from);
  if (found != path_of_endpoint_.end() && found->second->status.ok()) {
    found->second->status = why;
  }
  lost_.emplace_back(&from, why);
}

}  // namespace entrain
