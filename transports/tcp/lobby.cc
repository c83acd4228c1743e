#include "transports/tcp/lobby.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kAcceptPause =
    50 * kMillisecond;  // after an error of the listener: out of descriptors, mostly

}  // namespace

Lobby::Lobby(const TransportConfig& config, TcpShared* shared, Listener listener)
    : config_(config), shared_(shared), listener_(std::move(listener)) {}

absl::Status Lobby::Open() {
  return shared_->waiter->Add(listener_fd());
}

void Lobby::Dial(TcpEndpoint* endpoint, const Address& to) {
  absl::StatusOr<Greeting> greeting = Greeting::Dial(to, config_, endpoint->connect_by());
  if (!greeting.ok()) {
    endpoint->Lose(greeting.status());
    return;
  }
  Watch(std::make_unique<Guest>(Guest{.greeting = *std::move(greeting),
                                      .dialled = true,
                                      .expected = endpoint->peer(),
                                      .endpoint = endpoint,
                                      .farewell = {}}));
}

void Lobby::DialStream(TcpEndpoint* endpoint) {
  const Deadline by = Deadline::After(kHandshakeTime, *config_.clock);
  absl::StatusOr<Greeting> greeting =
      Greeting::Dial(endpoint->address(), config_, by, endpoint->connection());
  if (!greeting.ok()) {
    endpoint->OnStreamDialled(greeting.status());
    return;
  }
  Watch(std::make_unique<Guest>(Guest{.greeting = *std::move(greeting),
                                      .dialled = true,
                                      .further = true,
                                      .expected = endpoint->peer(),
                                      .endpoint = endpoint,
                                      .farewell = {}}));
}

void Lobby::Forget(const TcpEndpoint* endpoint) {
  for (const std::unique_ptr<Guest>& guest : guests_) {
    if (guest->endpoint == endpoint) {
      guest->endpoint = nullptr;
    }
  }
}

void Lobby::Expect(TcpEndpoint* endpoint) {
  const auto here = unclaimed_.find(endpoint->peer());
  if (here == unclaimed_.end()) {
    expected_[endpoint->peer()] = endpoint;
    return;
  }
  shared_->OnConnected(endpoint, std::move(here->second.fd), here->second.connection);
  unclaimed_.erase(here);
}

void Lobby::Leave(TcpEndpoint* endpoint, const absl::Status& why) {
  for (const std::unique_ptr<Guest>& guest : guests_) {
    if (guest->endpoint == endpoint) {
      guest->endpoint = nullptr;
      guest->farewell = std::string(why.message());
    }
  }
  if (const auto expected = expected_.find(endpoint->peer());
      expected != expected_.end() && expected->second == endpoint) {
    expected_.erase(expected);
    farewells_[endpoint->peer()] = std::string(why.message());
  }
}

void Lobby::Watch(std::unique_ptr<Guest> guest) {
  guest->interest = guest->greeting.interest();
  if (const absl::Status status = shared_->waiter->Add(guest->greeting.fd(), guest->interest);
      !status.ok()) {
    Refuse(guest.get(), status);
    return;
  }
  guests_.push_back(std::move(guest));
}

void Lobby::AcceptAll() {
  while (true) {
    Address from;
    absl::StatusOr<Fd> fd = Accept(listener_fd(), &from);
    if (!fd.ok()) {
      ENTRAIN_LOG(kWarning, "tcp: ", fd.status().message(), "; accepting again in a moment");
      accept_again_ = Deadline::After(kAcceptPause, *config_.clock);
      accepting_ = false;
      shared_->waiter->Remove(listener_fd());
      return;
    }
    if (!fd->valid()) {
      return;
    }
    EvictOldestStranger();
    const Deadline by = Deadline::After(kHandshakeTime, *config_.clock);
    Watch(std::make_unique<Guest>(
        Guest{.greeting = Greeting(*std::move(fd), from, config_, by), .farewell = {}}));
  }
}

void Lobby::EvictOldestStranger() {
  const auto is_stranger = [](const std::unique_ptr<Guest>& guest) { return !guest->dialled; };
  if (guests_.size() < kMaxStrangers ||
      static_cast<size_t>(std::count_if(guests_.begin(), guests_.end(), is_stranger)) <
          kMaxStrangers) {
    return;
  }
  const auto oldest = std::find_if(guests_.begin(), guests_.end(), is_stranger);
  Refuse(oldest->get(),
         absl::ResourceExhaustedError("too many connections that do not introduce themselves"));
  guests_.erase(oldest);
}

// Ends a connection before its handshake is done.
void Lobby::Refuse(Guest* guest, const absl::Status& why) {
  shared_->waiter->Remove(guest->greeting.fd());
  if (guest->dialled) {
    Fail(*guest, why);
  } else {
    ENTRAIN_LOG(kInfo, "tcp: dropped a connection from ", guest->greeting.address().ToString(),
                ": ", why.message());
  }
}

void Lobby::Fail(const Guest& guest, const absl::Status& why) {
  if (guest.endpoint != nullptr && guest.further) {
    guest.endpoint->OnStreamDialled(why);
  } else if (guest.endpoint != nullptr) {
    guest.endpoint->Lose(why);
  }
}

bool Lobby::Greet(Guest* guest) {
  const absl::StatusOr<bool> done = guest->greeting.Progress();
  if (!done.ok()) {
    Refuse(guest, done.status());
    return true;
  }
  if (*done) {
    shared_->waiter->Remove(guest->greeting.fd());
    Greeted(guest);
    return true;
  }
  if (guest->greeting.deadline().Passed(config_.clock->Now())) {
    Refuse(guest, absl::UnavailableError("connecting or the handshake took too long"));
    return true;
  }
  if (const uint32_t interest = guest->greeting.interest(); interest != guest->interest) {
    guest->interest = interest;
    (void)shared_->waiter->Change(guest->greeting.fd(),
                                  interest);  // if it fails, the deadline ends the greeting
  }
  return false;
}

void Lobby::Greeted(Guest* guest) {
  const PeerId peer = guest->greeting.peer();
  const ConnectionId connection = guest->greeting.connection();
  const ConnectionId further_to = guest->greeting.further_to();
  if (!guest->dialled) {
    if (further_to == ConnectionId()) {
      Admit(peer, connection, guest->greeting.Take());
    } else {
      shared_->OnFurther(peer, further_to, guest->greeting.Take());
    }
  } else if (peer != guest->expected) {
    Fail(*guest, absl::UnavailableError(
                     "another process answers at this address; the one that published it is gone"));
  } else if (guest->endpoint == nullptr) {
    if (!guest->further) {
      SayGoodbye(guest->greeting.Take(), guest->farewell);
    }
  } else if (guest->further) {
    guest->endpoint->OnStreamDialled(guest->greeting.Take());
  } else {
    shared_->OnConnected(guest->endpoint, guest->greeting.Take(), connection);
  }
}

// A peer that has dialled and proved itself.
void Lobby::Admit(const PeerId& peer, const ConnectionId& connection, Fd fd) {
  if (const auto farewell = farewells_.find(peer); farewell != farewells_.end()) {
    SayGoodbye(std::move(fd), farewell->second);
    farewells_.erase(farewell);
  } else if (const auto expected = expected_.find(peer); expected != expected_.end()) {
    TcpEndpoint* endpoint = expected->second;
    expected_.erase(expected);
    shared_->OnConnected(endpoint, std::move(fd), connection);
  } else if (unclaimed_.size() < kMaxUnclaimed && config_.self > peer) {
    unclaimed_[peer] = {std::move(fd), connection,
                        Deadline::After(config_.connect_timeout_ns, *config_.clock)};
  }
}

int Lobby::CheckDeadlines() {
  const int64_t now = config_.clock->Now();
  int events = 0;
  for (auto next = expected_.begin(); next != expected_.end();) {
    const auto expected = next++;
    TcpEndpoint* endpoint = expected->second;
    if (endpoint->connect_by().Passed(now)) {
      expected_.erase(expected);
      endpoint->Lose(absl::UnavailableError(
          absl::StrCat("it did not connect within ", config_.connect_timeout_ns / kSecond, " s")));
      ++events;
    }
  }
  for (auto known = unclaimed_.begin(); known != unclaimed_.end();) {
    known = known->second.deadline.Passed(now) ? unclaimed_.erase(known) : std::next(known);
  }
  if (!accepting_ && accept_again_.Passed(now)) {
    accepting_ = Open().ok();
  }
  return events;
}

int Lobby::Progress(bool knocked) {
  if (knocked) {
    AcceptAll();
  }
  size_t kept = 0;
  const size_t before = guests_.size();
  for (size_t i = 0; i < before; ++i) {
    if (!Greet(guests_[i].get())) {
      std::swap(guests_[kept++], guests_[i]);
    }
  }
  // Behind them are those that an endpoint has dialled meanwhile.
  guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(kept),
                guests_.begin() + static_cast<std::ptrdiff_t>(before));
  return static_cast<int>(before - kept) + CheckDeadlines();
}

Deadline Lobby::wake_at() const {
  Deadline wake = accepting_ ? Deadline::Never() : accept_again_;
  for (const std::unique_ptr<Guest>& guest : guests_) {
    wake = std::min(wake, guest->greeting.deadline());
  }
  for (const auto& [peer, endpoint] : expected_) {
    wake = std::min(wake, endpoint->connect_by());
  }
  for (const auto& [peer, known] : unclaimed_) {
    wake = std::min(wake, known.deadline);
  }
  return wake;
}

}  // namespace entrain
