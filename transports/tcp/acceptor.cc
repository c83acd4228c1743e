#include "transports/tcp/acceptor.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

// The pause after a failed accept. Usually accept fails because the process has no descriptors
// left.
constexpr int64_t kAcceptPause = 50 * kMillisecond;
constexpr int64_t kShortageTime = kSecond;
// The pause before a connection is dialled again after a cut. The pause doubles each time.
constexpr int64_t kFirstPause = 20 * kMillisecond, kLongestPause = kSecond;

}  // namespace

Acceptor::Acceptor(const TransportConfig& config, TcpShared* shared, Listener listener)
    : config_(config), shared_(shared), listener_(std::move(listener)) {}

absl::Status Acceptor::Open() {
  return shared_->waiter->Add(listener_.fd.get());
}

// ---- Connections that this side opens

void Acceptor::Dial(TcpEndpoint* endpoint, const Address& to) {
  dials_.push_back(std::make_unique<Outward>(Outward{.endpoint = endpoint,
                                                     .peer = endpoint->target().peer,
                                                     .to = to,
                                                     .by = endpoint->target().connect_by}));
  Attempt(dials_.back().get());
}

void Acceptor::DialStream(TcpEndpoint* endpoint) {
  dials_.push_back(
      std::make_unique<Outward>(Outward{.endpoint = endpoint,
                                        .peer = endpoint->target().peer,
                                        .to = endpoint->target().address,
                                        .by = Deadline::After(kHandshakeTime, *config_.clock),
                                        .further = true,
                                        .further_to = endpoint->connection()}));
  Attempt(dials_.back().get());
}

void Acceptor::Attempt(Outward* outward) {
  outward->again = Deadline::Never();
  outward->sockets = PathSockets();
  ConnectionId line;  // not used, because only the first connection's id matters
  absl::Status begun = Attempt(outward, outward->further_to, &outward->sockets.id);
  if (begun.ok() && !outward->further) {
    begun = Attempt(outward, outward->sockets.id, &line);
  }
  if (!begun.ok()) {
    Fail(outward, begun);
  }
}

absl::Status Acceptor::Attempt(Outward* outward, const ConnectionId& further_to,
                               ConnectionId* connection) {
  ENTRAIN_ASSIGN_OR_RETURN(PendingHandshake pending,
                           PendingHandshake::Dial(outward->to, config_, outward->by, further_to));
  *connection = pending.connection();
  return Watch(AddGuest(std::make_unique<Guest>(Guest{std::move(pending), outward})));
}

// Schedules another attempt to dial a path. One of its connections was cut before the handshake had
// a result, perhaps because a listener with many strangers has evicted it. Must not be called for a
// stream. A stream gets only one attempt, because the peer may already have accepted the stream.
void Acceptor::Cut(Outward* outward, const absl::Status& why) {
  DropGuests(outward);
  ++outward->cuts;
  outward->cut = why;
  outward->pause = std::clamp(2 * outward->pause, kFirstPause, kLongestPause);
  outward->again = std::min(Deadline::After(outward->pause, *config_.clock), outward->by);
  ENTRAIN_LOG(kInfo, "tcp: ", outward->to.ToString(), ": ", why.message(), "; dialling again");
}

void Acceptor::Fail(Outward* outward, const absl::Status& why) {
  DropGuests(outward);
  const std::unique_ptr<Outward> over = TakeOutward(outward);
  if (over->endpoint != nullptr && over->further) {
    over->endpoint->OnStreamDialled(why, {});
  } else if (over->endpoint != nullptr) {
    over->endpoint->Lose(why);
  }
}

std::unique_ptr<Acceptor::Outward> Acceptor::TakeOutward(const Outward* outward) {
  const auto at = std::find_if(dials_.begin(), dials_.end(),
                               [&](const auto& each) { return each.get() == outward; });
  std::unique_ptr<Outward> taken = std::move(*at);
  dials_.erase(at);
  return taken;
}

void Acceptor::DropGuests(const Outward* outward) {
  for (size_t i = guests_.size(); i-- > 0;) {
    if (guests_[i]->outward == outward) {
      Take(guests_[i].get());
    }
  }
}

void Acceptor::Forget(const TcpEndpoint* endpoint) {
  for (const std::unique_ptr<Outward>& outward : dials_) {
    if (outward->endpoint == endpoint) {
      outward->endpoint = nullptr;
    }
  }
}

void Acceptor::Expect(TcpEndpoint* endpoint) {
  const auto here = unclaimed_.find(endpoint->target().peer);
  if (here == unclaimed_.end()) {
    expected_[endpoint->target().peer] = endpoint;
    accept_again_ = {0};  // the peer may wait in the kernel's queue behind strangers
    return;
  }
  PathSockets sockets = std::move(here->second.sockets);
  unclaimed_.erase(here);
  shared_->OnConnected(endpoint, std::move(sockets));
}

void Acceptor::Leave(TcpEndpoint* endpoint, const absl::Status& why) {
  for (const std::unique_ptr<Outward>& outward : dials_) {
    if (outward->endpoint == endpoint) {
      outward->endpoint = nullptr;
      outward->farewell = std::string(why.message());
    }
  }
  if (const auto expected = expected_.find(endpoint->target().peer);
      expected != expected_.end() && expected->second == endpoint) {
    expected_.erase(expected);
    farewells_[endpoint->target().peer] = std::string(why.message());
  }
}

// ---- Accepting

int Acceptor::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int64_t now = config_.clock->Now();
    const bool counted = !meeting();
    if (counted && !budget_.Take(now)) {
      StopAccepting(budget_.ready_at());
      return i;
    }
    Address from;
    absl::StatusOr<Fd> fd = entrain::Accept(listener_.fd.get(), &from);
    if (!fd.ok()) {
      StopAccepting({now + kAcceptPause});
      return i + OnShortage(fd.status(), now);
    }
    short_since_ns_ = 0;
    if (!fd->valid()) {
      if (counted) {
        budget_.GiveBack();
      }
      return i;
    }
    ++strangers_;
    // Often a peer's first bytes have already arrived, or a stranger has already closed. Greet then
    // ends the handshake at once, without epoll.
    Greet(AddGuest(std::make_unique<Guest>(
        Guest{PendingHandshake(*std::move(fd), from, config_, {now + kHandshakeTime}), nullptr,
              counted})));
    if (strangers_ > places_) {
      Evict();
    }
  }
  return kAcceptsPerTurn;
}

// A peer that dials waits in the kernel's queue, and cannot know why. So after kShortageTime without
// a descriptor the paths that wait for peers end with the reason, instead of at their deadline.
int Acceptor::OnShortage(const absl::Status& why, int64_t now) {
  if (short_since_ns_ == 0) {
    short_since_ns_ = now;
    ENTRAIN_LOG(kWarning, "tcp: ", why.message(), "; accepting again in a moment");
  }
  if (now - short_since_ns_ < kShortageTime) {
    return 0;
  }
  int events = 0;
  for (const auto& [peer, endpoint] : std::exchange(expected_, {})) {
    endpoint->Lose(why);
    ++events;
  }
  return events;
}

void Acceptor::StopAccepting(Deadline until) {
  accepting_ = false;
  accept_again_ = until;
  shared_->waiter->Remove(listener_.fd.get());
}

// Evicts the oldest silent stranger if it is in the older half, else the oldest stranger. A silent
// stranger of the newer half may be a peer whose hello is still under way.
void Acceptor::Evict() {
  const Guest* victim = nullptr;
  size_t older = strangers_ / 2;
  for (auto guest = guests_.begin(); older > 0; ++guest) {
    if ((*guest)->outward != nullptr) {
      continue;
    }
    const bool silent = (*guest)->pending.silent();
    victim = victim == nullptr || silent ? guest->get() : victim;
    older = silent ? 0 : older - 1;
  }
  Refuse(Take(victim),
         absl::ResourceExhaustedError("too many connections that do not introduce themselves"));
}

// ---- Guests

Acceptor::Guest* Acceptor::AddGuest(std::unique_ptr<Guest> guest) {
  Guest* const added = guest.get();
  guests_until_ = std::min(guests_until_, added->pending.deadline());
  by_fd_[added->pending.fd()] = added;
  guests_.push_back(std::move(guest));
  return added;
}

absl::Status Acceptor::Watch(Guest* guest) {
  const uint32_t interest = guest->pending.interest();
  if (interest == guest->interest) {
    return absl::OkStatus();
  }
  const int fd = guest->pending.fd();
  ENTRAIN_RETURN_IF_ERROR(guest->interest == 0 ? shared_->waiter->Add(fd, interest)
                                               : shared_->waiter->Change(fd, interest));
  guest->interest = interest;
  return absl::OkStatus();
}

std::unique_ptr<Acceptor::Guest> Acceptor::Take(const Guest* guest) {
  const auto at = std::find_if(guests_.begin(), guests_.end(),
                               [&](const auto& each) { return each.get() == guest; });
  std::unique_ptr<Guest> taken = std::move(*at);
  guests_.erase(at);
  by_fd_.erase(taken->pending.fd());
  if (taken->interest != 0) {
    shared_->waiter->Remove(taken->pending.fd());
  }
  strangers_ -= taken->outward == nullptr ? 1 : 0;
  return taken;
}

int Acceptor::Greet(Guest* guest) {
  ++looks_;
  const absl::StatusOr<bool> done = guest->pending.Progress();
  const absl::Status status = !done.ok() ? done.status() : *done ? absl::OkStatus() : Watch(guest);
  if (!status.ok()) {
    Refuse(Take(guest), status);
  } else if (*done) {
    Greeted(Take(guest));
  } else {
    return 0;
  }
  return 1;
}

void Acceptor::Refuse(std::unique_ptr<Guest> guest, const absl::Status& why) {
  if (guest->outward == nullptr) {
    ENTRAIN_LOG(kInfo, "tcp: dropped a connection from ", guest->pending.address().ToString(), ": ",
                why.message());
  } else if (absl::IsUnavailable(why) && guest->pending.reached() && !guest->outward->further) {
    Cut(guest->outward, why);
  } else {
    Fail(guest->outward, why);
  }
}

void Acceptor::Greeted(std::unique_ptr<Guest> guest) {
  PendingHandshake& pending = guest->pending;
  if (guest->outward != nullptr) {
    EndHandshakeOutward(guest->outward, &pending);
    return;
  }
  if (guest->counted) {
    budget_.GiveBack();
  }
  const PeerId peer = pending.peer();
  const ConnectionId first = pending.further_to(), id = pending.connection();
  Channel channel = pending.Take();
  const bool is_first = first == ConnectionId();
  if (!is_first && shared_->OnFurther(peer, first, id, &channel)) {
    return;  // the channel is a stream, and its endpoint has taken it
  }
  const auto name = std::pair(peer, is_first ? id : first);
  if (half_.size() >= kMaxUnclaimed && half_.count(name) == 0) {
    return;
  }
  Arrived& arrived = half_[name];
  arrived.deadline = Deadline::After(kHandshakeTime, *config_.clock);
  arrived.sockets.id = name.second;
  arrived.sockets.checksums = pending.checksums();
  (is_first ? arrived.sockets.first : arrived.sockets.line) = std::move(channel);
  if (arrived.sockets.whole()) {
    PathSockets sockets = std::move(arrived.sockets);
    half_.erase(name);
    Admit(peer, std::move(sockets));
  }
}

void Acceptor::EndHandshakeOutward(Outward* outward, PendingHandshake* pending) {
  if (pending->peer() != outward->peer) {
    Fail(outward,
         absl::UnavailableError(
             "another process answers at this address; the one that published it is gone"));
    return;
  }
  PathSockets& sockets = outward->sockets;
  const bool is_line = pending->connection() != sockets.id;
  sockets.checksums = pending->checksums();
  (is_line ? sockets.line : sockets.first) = pending->Take();
  if (!outward->further && !sockets.whole()) {
    return;
  }
  const std::unique_ptr<Outward> over = TakeOutward(outward);
  if (over->endpoint == nullptr) {
    if (!over->further) {
      SayGoodbye(std::move(over->sockets), over->farewell);
    }
  } else if (over->further) {
    over->endpoint->OnStreamDialled(std::move(over->sockets.first), over->sockets.id);
  } else {
    shared_->OnConnected(over->endpoint, std::move(over->sockets));
  }
}

// Admits a peer that has dialled and proved its identity on both connections.
void Acceptor::Admit(const PeerId& peer, PathSockets sockets) {
  if (const auto farewell = farewells_.find(peer); farewell != farewells_.end()) {
    SayGoodbye(std::move(sockets), farewell->second);
    farewells_.erase(farewell);
  } else if (const auto expected = expected_.find(peer); expected != expected_.end()) {
    TcpEndpoint* endpoint = expected->second;
    expected_.erase(expected);
    shared_->OnConnected(endpoint, std::move(sockets));
  } else if (unclaimed_.size() < kMaxUnclaimed && config_.self > peer) {
    unclaimed_[peer] = {std::move(sockets),
                        Deadline::After(config_.connect_timeout_ns, *config_.clock)};
  }
}

int Acceptor::CheckGuests(int64_t now) {
  if (!guests_until_.Passed(now)) {
    return 0;
  }
  // The end of one guest may end another guest of the same Outward, so the loop searches from the
  // beginning each time.
  const absl::Status why = absl::UnavailableError("connecting or the handshake took too long");
  int events = 0;
  while (true) {
    const auto late = std::find_if(guests_.begin(), guests_.end(), [&](const auto& guest) {
      return guest->pending.deadline().Passed(now);
    });
    if (late == guests_.end()) {
      break;
    }
    std::unique_ptr<Guest> guest = Take(late->get());
    if (Outward* const outward = guest->outward; outward != nullptr) {
      Fail(outward, why);
    } else {
      Refuse(std::move(guest), why);
    }
    ++events;
  }
  guests_until_ = Deadline::Never();
  for (const std::unique_ptr<Guest>& guest : guests_) {
    guests_until_ = std::min(guests_until_, guest->pending.deadline());
  }
  return events;
}

int Acceptor::CheckPeers(int64_t now) {
  int events = 0;
  std::vector<Outward*> due;
  for (const std::unique_ptr<Outward>& outward : dials_) {
    if (outward->again.Passed(now)) {
      due.push_back(outward.get());
    }
  }
  for (Outward* const outward : due) {
    if (outward->by.Passed(now)) {
      Fail(outward, absl::UnavailableError(
                        absl::StrCat("the connection was cut before the handshake was done, ",
                                     outward->cuts, " times; last: ", outward->cut.message())));
    } else {
      Attempt(outward);
    }
    ++events;
  }
  for (auto next = expected_.begin(); next != expected_.end();) {
    const auto expected = next++;
    TcpEndpoint* endpoint = expected->second;
    if (endpoint->target().connect_by.Passed(now)) {
      expected_.erase(expected);
      endpoint->Lose(absl::UnavailableError(
          absl::StrCat("it did not connect within ", config_.connect_timeout_ns / kSecond, " s")));
      ++events;
    }
  }
  const auto late = [&](const auto& arrived) { return arrived.second.deadline.Passed(now); };
  std::erase_if(half_, late);
  std::erase_if(unclaimed_, late);
  return events;
}

int Acceptor::OnReady(int fd) {
  if (fd == listener_.fd.get()) {
    return Accept();
  }
  const auto guest = by_fd_.find(fd);
  return guest == by_fd_.end() ? 0 : Greet(guest->second);
}

int Acceptor::Progress() {
  const int64_t now = config_.clock->Now();
  if (!accepting_ && accept_again_.Passed(now)) {
    accepting_ = Open().ok();
  }
  return CheckGuests(now) + CheckPeers(now);
}

Deadline Acceptor::wake_at() const {
  Deadline wake = std::min(guests_until_, accepting_ ? Deadline::Never() : accept_again_);
  for (const std::unique_ptr<Outward>& outward : dials_) {
    wake = std::min(wake, outward->again);
  }
  for (const auto& [peer, endpoint] : expected_) {
    wake = std::min(wake, endpoint->target().connect_by);
  }
  for (const auto& [name, half] : half_) {
    wake = std::min(wake, half.deadline);
  }
  for (const auto& [peer, known] : unclaimed_) {
    wake = std::min(wake, known.deadline);
  }
  return wake;
}

}  // namespace entrain
