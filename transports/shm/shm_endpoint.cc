#include "transports/shm/shm_endpoint.h"

#include <algorithm>
#include <utility>

#include <sys/epoll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::shm {
namespace {

constexpr int64_t kKnockEvery = 200 * kMillisecond;
constexpr size_t kMaxFarewell = 512;

}  // namespace

ShmEndpoint::ShmEndpoint(Shared* shared, const PeerId& peer, int published_pid,
                         absl::string_view name, bool dial, Deadline connect_by)
    : shared_(shared),
      peer_(peer),
      name_(name),
      connect_by_(connect_by),
      pid_(published_pid),
      tx_(&shared->completions, shared->limits, shared->regions.get()),
      rx_(this, shared->events, &shared->completions, &tx_, shared->limits) {
  if (dial) {
    introduction_ = std::make_unique<Introduction>(&shared->self, name);
  }
  shared->endpoints.push_back(this);
}

ShmEndpoint::~ShmEndpoint() {
  Close(absl::AbortedError("endpoint destroyed"));
  std::replace(shared_->endpoints.begin(), shared_->endpoints.end(), this,
               static_cast<ShmEndpoint*>(nullptr));
}

void ShmEndpoint::PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (stage_ == Stage::kEnded) {
    shared_->completions.Add(done, end_, 0);
    return;
  }
  tx_.Send(envelope, bytes, done);
}

void ShmEndpoint::PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) {
  // also called after the end, because messages that had arrived before are kept
  rx_.Post(envelope, bytes, done, hint);
}

absl::Status ShmEndpoint::Release(Loan* loan) {
  return rx_.Release(loan);
}

void ShmEndpoint::Retire(const SharedRegion& region) {
  if (stage_ == Stage::kUp) {
    tx_.Retire(region);
  }
}

Endpoint::Sent ShmEndpoint::TrySend(const Envelope& envelope, ConstBytes bytes,
                                    SendRequest* request) {
  if (stage_ != Stage::kUp) {
    return Sent::kNo;
  }
  rx_.Settle();  // so that the new record reports this side's latest read position
  return tx_.SendNow(envelope, bytes, request);
}

Endpoint::Next ShmEndpoint::TryTaken(SendRequest request) {
  if (stage_ != Stage::kUp) {
    return Next::kOther;
  }
  rx_.Settle();
  return rx_.HearNow(request);
}

void ShmEndpoint::Await(SendRequest request, Completion* done) {
  tx_.Await(request, done);  // also called after the end. The message is then over, and its buffer
                             // is free
}

Endpoint::Next ShmEndpoint::TryRecv(const Envelope& envelope, Bytes into, const std::byte** where) {
  return stage_ == Stage::kUp ? rx_.TakeNow(envelope, into, where) : Next::kOther;
}

void ShmEndpoint::SendControl(absl::string_view message) {
  if (stage_ != Stage::kEnded && message.size() <= static_cast<size_t>(kMaxControlBytes)) {
    tx_.Control(kControl, AsBytes(message));
  }
}

void ShmEndpoint::Revoke(Context mine, Context theirs, const absl::Status& why) {
  if (stage_ != Stage::kEnded) {
    tx_.Revoke(theirs, why);
    rx_.Revoke(mine, why);
  }
}

void ShmEndpoint::Close(const absl::Status& why) {
  if (stage_ == Stage::kEnded) {
    return;
  }
  if (stage_ == Stage::kUp) {
    const std::string text(why.message().substr(0, kMaxFarewell));
    tx_.Control(kBye, AsBytes(text));
    tx_.Flush();
  }
  End(why);
}

std::string ShmEndpoint::peer_address() const {
  return absl::StrCat("shm pid ", pid_);
}

std::string ShmEndpoint::Explain() const {
  return stage_ == Stage::kUp ? absl::StrCat("shm, ", Explained(rx_.facts())) : "";
}

// Releases everything that belongs to the peer, except the mapping of the segment, because the
// caller may still use a record. The next Poll, at which records become invalid, releases the rest
// when the caller has released all loans.
void ShmEndpoint::End(const absl::Status& why) {
  if (std::exchange(stage_, Stage::kEnded) == Stage::kUp) {
    CountCores();
  }
  end_ = why;
  tx_.FailAll(why);
  rx_.FailAll(why);
  Unwatch();
  if (introduction_ != nullptr && introduction_->dialer() && !introduction_->peer_known()) {
    introduction_->Leave();
    shared_->leaving.push_back(std::move(introduction_));
  }
  introduction_.reset();
  if (channel_) {
    channel_->Hangup();
  }
}

void ShmEndpoint::CountCores() {
  CpuCrowd all;
  all.Add(shared_->self.cpus);
  for (const ShmEndpoint* const endpoint : shared_->endpoints) {
    if (endpoint != nullptr && endpoint->stage_ == Stage::kUp) {
      all.Add(endpoint->cpus_);
    }
  }
  const bool spare_cores = all.size() <= all.Cores();
  for (ShmEndpoint* const endpoint : shared_->endpoints) {
    if (endpoint != nullptr && endpoint->stage_ == Stage::kUp) {
      endpoint->tx_.SetSpareCores(spare_cores);
      endpoint->rx_.SetSpareCores(spare_cores);
    }
  }
}

void ShmEndpoint::Lose(const absl::Status& why) {
  End(why);
  shared_->events->OnLost(*this, why);
}

void ShmEndpoint::Watch(int fd, uint32_t events) {
  if (shared_->wait->Add(fd, events).ok()) {
    watched_.push_back(fd);
  }
}

void ShmEndpoint::Unwatch() {
  // Removes the descriptors from epoll explicitly. To close them is not enough if a forked child
  // has copies of them.
  for (int fd : watched_) {
    shared_->wait->Remove(fd);
  }
  watched_.clear();
}

bool ShmEndpoint::Arrive(std::unique_ptr<Introduction> introduction) {
  if (stage_ != Stage::kConnecting || introduction_ != nullptr) {
    return false;
  }
  introduction_ = std::move(introduction);
  introduction_->Admit();
  return true;
}

int ShmEndpoint::Connecting() {
  const absl::StatusOr<bool> done = Introduce();
  if (!done.ok()) {
    Lose(Annotate(done.status(), absl::StrCat("connecting to ", peer_address())));
    return 1;
  }
  if (*done) {
    Stand();
  }
  return *done ? 1 : 0;
}

absl::StatusOr<bool> ShmEndpoint::Introduce() {
  const int64_t now = shared_->clock->Now();
  if (connect_by_.Passed(now)) {
    return absl::UnavailableError("it did not answer in time");
  }
  if (introduction_ == nullptr) {
    if (now >= knock_at_) {
      knock_at_ = now + kKnockEvery;
      if (!SomebodyListens(name_)) {
        return absl::UnavailableError("it is gone");
      }
    }
    return false;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const bool done, introduction_->Step());
  if (introduction_->fd() >= 0 && watched_.empty()) {
    Watch(introduction_->fd(), EPOLLIN | EPOLLRDHUP);
  }
  if (done && introduction_->peer() != peer_) {
    return absl::UnavailableError("another process answers there");
  }
  return done;
}

void ShmEndpoint::Stand() {
  Unwatch();
  Acquaintance acquaintance = introduction_->Take();
  cpus_ = acquaintance.cpus;
  channel_.emplace(std::move(acquaintance));
  introduction_.reset();
  pid_ = channel_->process().pid();
  Watch(channel_->socket(), EPOLLIN | EPOLLRDHUP);
  if (channel_->process().death_fd() >= 0) {
    Watch(channel_->process().death_fd(), EPOLLIN);
  }
  stage_ = Stage::kUp;
  tx_.Attach(&*channel_);
  rx_.Attach(&*channel_);
  CountCores();
  tx_.Flush();
}

bool ShmEndpoint::OnReady(int fd) {
  if (std::find(watched_.begin(), watched_.end(), fd) == watched_.end()) {
    return false;
  }
  if (stage_ != Stage::kUp) {
    return true;
  }
  const bool socket = fd == channel_->socket();
  if (const absl::Status status = socket ? rx_.TakeOffers() : absl::OkStatus(); !status.ok()) {
    Lose(status);
    return true;
  }
  peer_ended_ = peer_ended_ || !socket || channel_->hung_up();
  return true;
}

int ShmEndpoint::Poll() {
  switch (stage_) {
    case Stage::kConnecting:
      return Connecting();
    case Stage::kUp:
      // If the connection is idle, this statement is its whole cost: it reads one cache line of the
      // ring, and variables of this process.
      return rx_.MayHaveWork() || tx_.waiting() || peer_ended_ || channel_->broken() ? Move() : 0;
    case Stage::kEnded:
      if (channel_ && !dropped_ && !rx_.lends()) {
        channel_->Drop();
        dropped_ = true;
      }
      return 0;
  }
  return 0;
}

int ShmEndpoint::Move() {
  const absl::StatusOr<int> read = rx_.Read();
  if (stage_ == Stage::kEnded) {  // a record caused an event that has closed the endpoint
    return 1;
  }
  if (!read.ok() || channel_->broken()) {
    Lose(!read.ok() ? read.status()
         : !channel_->shortage().ok()
             ? channel_->shortage()
             : absl::UnavailableError("the peer broke the protocol: an impossible ring index"));
    return 1;
  }
  const int events = *read + tx_.Flush() + rx_.Pull();
  if (peer_ended_ && *read == 0) {
    Lose(PeerEnded());
    return 1;
  }
  peer_ended_ = peer_ended_ || rx_.peer_gone();
  return events;
}

absl::Status ShmEndpoint::PeerEnded() const {
  if (!rx_.farewell().empty()) {
    return AsPeerEnded(
        absl::UnavailableError(absl::StrCat("closed by the peer: ", rx_.farewell())));
  }
  return channel_->ClosedByPeer()
             ? absl::UnavailableError(absl::StrCat(peer_address(), " closed the connection"))
             : AsPeerEnded(absl::UnavailableError(absl::StrCat(peer_address(), " died")));
}

bool ShmEndpoint::Arm() {
  if (stage_ != Stage::kUp) {
    return true;
  }
  channel_->Sleep(tx_.waiting() ? kForDataOrRoom : kForData);
  return !rx_.HasWork() && !tx_.CanFlush() && !peer_ended_ && !channel_->broken();
}

void ShmEndpoint::Disarm() {
  if (stage_ == Stage::kUp) {
    channel_->Wake();
  }
}

}  // namespace entrain::shm
