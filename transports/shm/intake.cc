#include "transports/shm/intake.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::shm {
namespace {

constexpr int kRecordsPerRead = 64;
constexpr size_t kMaxFarewell = 1024;

absl::Status Breach(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

// Copies a record's head out of shared memory: what is checked must not change afterwards.
template <typename Wire>
bool Take(ConstBytes* payload, Wire* wire) {
  if (payload->size() < sizeof(Wire)) {
    return false;
  }
  std::memcpy(wire, payload->data(), sizeof(Wire));
  payload->remove_prefix(sizeof(Wire));
  return true;
}
template <typename Wire>
bool TakeAll(ConstBytes payload, Wire* wire) {
  return Take(&payload, wire) && payload.empty();
}

}  // namespace

Intake::Intake(Endpoint* endpoint, Events* events, CompletionList* completions, Outbox* outbox,
               const Limits& limits, const bool* spare_cores)
    : events_(events),
      endpoint_(endpoint),
      outbox_(outbox),
      limits_(limits),
      spare_cores_(spare_cores),
      queue_(endpoint, events, completions, limits.credit) {}

void Intake::Post(const Envelope& envelope, Bytes bytes, Completion* done, Loan* loan) {
  if (Incoming* incoming = queue_.Post(envelope, bytes, done, loan)) {
    Fetch(incoming);
  }
  if (!ended_) {
    ReturnCredit();
  }
}

absl::StatusOr<int> Intake::Read() {
  Settle();
  RingReader& ring = channel_->reader();
  int records = 0;
  RingReader::Record record;
  while (records < kRecordsPerRead && !ended_ && channel_->Peek(&record)) {
    ++records;
    const absl::Status status = Handle(record);
    ring.Pop();
    if (!status.ok()) {
      return status;
    }
    ReleaseNowAndThen();
  }
  if (records > 0 && !ended_) {
    ReturnCredit();
  }
  return records;
}

Endpoint::Next Intake::TakeNow(const Envelope& envelope, Bytes into) {
  const std::byte* data = nullptr;
  const Endpoint::Next next = LookNow(envelope, into, &data);
  if (next == Endpoint::Next::kThis) {
    if (data != into.data() && !into.empty()) {
      std::memcpy(into.data(), data, into.size());
    }
    Settle();
  }
  return next;
}

Endpoint::Next Intake::LookNow(const Envelope& envelope, Bytes into, const std::byte** data) {
  if (channel_ == nullptr || ended_) {
    return Endpoint::Next::kOther;
  }
  Settle();
  switch (queue_.TakeKept(envelope, into)) {
    case MatchQueue::Kept::kWhole:
      ReturnCredit();
      *data = into.data();
      return Endpoint::Next::kThis;
    case MatchQueue::Kept::kOther:
      return Endpoint::Next::kOther;
    case MatchQueue::Kept::kNothing:
      break;
  }
  RingReader::Record record;
  if (!channel_->Peek(&record)) {
    return channel_->broken() ? Endpoint::Next::kOther : Endpoint::Next::kNothing;
  }
  WireEnvelope head;
  if (record.kind != kEager || record.payload.size() != sizeof(head) + into.size()) {
    return Endpoint::Next::kOther;
  }
  Take(&record.payload, &head);
  if (head.tag != envelope.tag.bits() || head.descriptor != envelope.descriptor) {
    return Endpoint::Next::kOther;
  }
  *data = record.payload.data();
  looked_at_ = MatchQueue::CostOf(static_cast<int64_t>(into.size()));
  return Endpoint::Next::kThis;
}

void Intake::LetGo() {
  channel_->reader().Pop();
  ReleaseNowAndThen();
  channel_->AddConsumed(looked_at_);
  looked_at_ = 0;
}

void Intake::ReleaseNowAndThen() {
  if (channel_->reader().unreleased() >= channel_->MaxPayload() / 2) {
    channel_->Release();
  }
}

absl::Status Intake::Handle(const RingReader::Record& record) {
  switch (record.kind) {
    case kEager:
      return OnEager(record.payload);
    case kAnnounce: {
      WireAnnounce wire;
      return TakeAll(record.payload, &wire) ? OnAnnounce(wire) : Breach("a short announcement");
    }
    case kDone: {
      WireDone wire;
      return TakeAll(record.payload, &wire) ? outbox_->OnDone(wire) : Breach("a short end");
    }
    case kPush: {
      WirePush wire;
      return TakeAll(record.payload, &wire) ? outbox_->OnPush(wire) : Breach("a short request");
    }
    case kFragment:
      return OnFragment(record.payload);
    case kWithdraw: {
      WireWithdraw wire;
      if (!TakeAll(record.payload, &wire) || wire.context >= Side::kContexts) {
        return Breach("a withdrawal of no context");
      }
      OnWithdraw(static_cast<Context>(wire.context));
      return absl::OkStatus();
    }
    case kControl: {
      const std::string text(AsText(record.payload));
      if (text.size() > static_cast<size_t>(kMaxControlBytes)) {
        return Breach("a control message too long");
      }
      events_->OnControl(*endpoint_, text);
      return absl::OkStatus();
    }
    case kRetire: {
      WireRetire wire;
      return TakeAll(record.payload, &wire) ? regions_.Forget(wire.region)
                                            : Breach("a short retirement");
    }
    case kBye:
      farewell_ = std::string(AsText(record.payload.subspan(0, kMaxFarewell)));
      return absl::OkStatus();
    default:
      return Breach(absl::StrCat("a record of unknown kind ", record.kind));
  }
}

absl::Status Intake::OnEager(ConstBytes payload) {
  WireEnvelope head;
  if (!Take(&payload, &head)) {
    return Breach("a message without an envelope");
  }
  return queue_.Deliver(head.envelope(), payload);
}

absl::Status Intake::OnAnnounce(const WireAnnounce& wire) {
  if (wire.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Breach("an announcement of an impossible length");
  }
  const Envelope envelope = wire.envelope.envelope();
  Remote remote{
      .tag = envelope.tag, .bytes = wire.bytes, .address = wire.address, .handle = wire.handle};
  if (wire.region != 0) {
    ENTRAIN_RETURN_IF_ERROR(TakeOffers());
    ENTRAIN_ASSIGN_OR_RETURN(remote.region, regions_.Find(wire.region, wire.address, wire.bytes));
  }
  const uint64_t handle = remotes_.Add(std::move(remote));
  ENTRAIN_ASSIGN_OR_RETURN(Incoming* const incoming,
                           queue_.Announce(envelope, static_cast<int64_t>(wire.bytes), handle));
  // OnEarly may have closed this endpoint, which keeps nothing.
  if (incoming != nullptr && !ended_) {
    Fetch(incoming);
  }
  return absl::OkStatus();
}

void Intake::Fetch(Incoming* incoming) {
  const uint64_t handle = incoming->handle();
  Remote* remote = remotes_.Find(handle);
  remote->incoming = incoming;
  if (incoming->dropped()) {
    queue_.Abandon(incoming);
    Finish(handle);
  } else if (remote->region != nullptr && incoming->loan() != nullptr) {
    Lend(remote, handle);
  } else if (incoming->bytes() == 0 || remote->region != nullptr ||
             (channel_->can_pull() && !ShareWork(*remote))) {
    pulls_.push_back(handle);
    pulling_ += remote->bytes;
    remote->counted = remote->bytes;
  } else {
    AskForPush(remote, handle);
  }
}

void Intake::Lend(Remote* remote, uint64_t handle) {
  Incoming* const incoming = std::exchange(remote->incoming, nullptr);
  *incoming->loan() = {remote->data(), handle};
  remote->lent = true;
  queue_.Advance(incoming, incoming->left());
}

absl::Status Intake::EndLoan(Loan* loan) {
  const uint64_t handle = std::exchange(*loan, Loan()).handle;
  const Remote& remote = *remotes_.Find(handle);  // there until now, whatever was revoked or closed
  const bool good = !remote.revoked && !channel_->ClosedByPeer() &&
                    !channel_->RevokedByPeer(remote.tag.context());
  if (ended_ || remote.revoked) {
    Forget(handle);
  } else {
    Finish(handle);
  }
  return good ? absl::OkStatus() : absl::AbortedError("revoked while it was read");
}

absl::Status Intake::TakeOffers() {
  WireOffer offer;
  Fd memory;
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool taken, channel_->TakeOffer(&offer, &memory));
    if (!taken) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(regions_.Take(offer, std::move(memory)));
  }
}

// Not where the sender sleeps, has no core of its own, or is busy with what it fetches from here.
bool Intake::ShareWork(const Remote& remote) const {
  return remote.bytes >= limits_.share_bytes && *spare_cores_ && pushing_ < pulling_ &&
         !outbox_->announced() && channel_->PeerPolls();
}

void Intake::Forget(uint64_t handle) {
  const Remote& remote = *remotes_.Find(handle);
  (remote.pushed ? pushing_ : pulling_) -= remote.counted;
  remotes_.Remove(handle);
}

void Intake::AskForPush(Remote* remote, uint64_t handle) {
  pulling_ -= std::exchange(remote->counted, remote->bytes);
  pushing_ += remote->bytes;
  remote->pushed = true;
  outbox_->Control(kPush, WirePush{.handle = remote->handle,
                                   .to = handle,
                                   .offset = static_cast<uint64_t>(remote->incoming->received())});
}

void Intake::Finish(uint64_t handle) {
  outbox_->Control(kDone, WireDone{remotes_.Find(handle)->handle});
  Forget(handle);
}

int Intake::Pull() {
  while (!pulls_.empty() && !peer_gone_) {
    const uint64_t handle = pulls_.front();
    Remote* remote = remotes_.Find(handle);
    if (remote == nullptr || remote->pushed) {  // withdrawn, or comes by the ring
      pulls_.pop_front();
      continue;
    }
    if (remote->incoming->dropped()) {
      queue_.Abandon(remote->incoming);
      Finish(handle);
      return 1;
    }
    if (remote->incoming->left() == 0) {
      return Complete(remote, handle);
    }
    if (!channel_->can_pull() && remote->region == nullptr) {  // found out while this one waited
      AskForPush(remote, handle);
      return 1;
    }
    return PullPiece(remote, handle);
  }
  return 0;
}

// Invariant 7: what was copied counts only if the sender had not revoked it by then.
int Intake::PullPiece(Remote* remote, uint64_t handle) {
  Incoming* incoming = remote->incoming;
  const Bytes into = incoming->writable().subspan(0, limits_.piece_bytes);
  size_t got = 0;
  const auto read = ReadPiece(*remote, into, &got);
  if (channel_->ClosedByPeer() || read == PeerProcess::Read::kGone) {
    peer_gone_ = true;
    return 1;
  }
  if (channel_->RevokedByPeer(remote->tag.context())) {
    queue_.Fail(incoming, absl::AbortedError("revoked by the peer that was sending"));
    Forget(handle);
    return 1;
  }
  if (read != PeerProcess::Read::kSome) {
    if (read == PeerProcess::Read::kForbidden) {
      channel_->StopPulling("forbidden");
    }
    AskForPush(remote, handle);
    return 1;
  }
  if (queue_.Advance(incoming, static_cast<int64_t>(got))) {
    Finish(handle);
  }
  return 1;
}

PeerProcess::Read Intake::ReadPiece(const Remote& remote, Bytes into, size_t* got) const {
  const auto done = static_cast<uint64_t>(remote.incoming->received());
  if (remote.region != nullptr) {
    std::memcpy(into.data(), remote.data() + done, into.size());
    *got = into.size();
    return PeerProcess::Read::kSome;
  }
  const PeerProcess& process = channel_->process();
  // If the last piece is from our peer, then so were those before it.
  return done + into.size() == remote.bytes
             ? process.ReadMemoryProved(remote.address + done, into, got)
             : process.ReadMemory(remote.address + done, into, got);
}

int Intake::Complete(Remote* remote, uint64_t handle) {
  queue_.Advance(remote->incoming, 0);
  Finish(handle);
  return 1;
}

absl::Status Intake::OnFragment(ConstBytes payload) {
  WireFragment head;
  if (!Take(&payload, &head) || !remotes_.Valid(head.to)) {
    return Breach("a fragment of nothing");
  }
  Remote* remote = remotes_.Find(head.to);
  if (remote == nullptr) {
    return absl::OkStatus();  // refused while it was under way
  }
  Incoming* incoming = remote->incoming;
  const auto bytes = static_cast<int64_t>(payload.size());
  if (!remote->pushed || bytes > incoming->left()) {
    return Breach("more fragments than announced");
  }
  if (incoming->dropped()) {
    queue_.Abandon(incoming);
    Finish(head.to);
    return absl::OkStatus();
  }
  if (bytes > 0) {
    std::memcpy(incoming->writable().data(), payload.data(), payload.size());
  }
  if (queue_.Advance(incoming, bytes)) {
    Forget(head.to);  // the sender knows that it has sent all
  }
  return absl::OkStatus();
}

void Intake::OnWithdraw(Context context) {
  const absl::Status why = absl::AbortedError("revoked by the peer that was sending");
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (remote.tag.context() != context || remote.lent) {  // EndLoan sees it
      return;
    }
    if (remote.incoming != nullptr) {
      queue_.Fail(remote.incoming, why);
    } else {
      queue_.Withdraw(remote.tag, handle, why);
    }
    Forget(handle);
  });
}

void Intake::ReturnCredit() {
  if (const int64_t released = queue_.TakeReleased(); released > 0 && channel_ != nullptr) {
    channel_->AddConsumed(released);
  }
}

void Intake::Revoke(Context mine, const absl::Status& why) {
  refused_.clear();
  queue_.Revoke(mine, why, &refused_);
  for (uint64_t handle : refused_) {
    Finish(handle);
  }
  // What is lent stays mapped until EndLoan; the sender does not wait for that.
  remotes_.ForEach([&](uint64_t, Remote& remote) {
    if (remote.lent && remote.tag.context() == mine && !std::exchange(remote.revoked, true)) {
      outbox_->Control(kDone, WireDone{remote.handle});
    }
  });
  ReturnCredit();
}

void Intake::FailAll(const absl::Status& why) {
  ended_ = true;
  queue_.FailAll(why);
  pulls_.clear();
  regions_.Clear();
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (!remote.lent) {
      Forget(handle);
    }
  });
}

}  // namespace entrain::shm
