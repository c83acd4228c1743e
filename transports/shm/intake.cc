#include "transports/shm/intake.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/base/stream_copy.h"
#include "lib/base/text.h"
#include "transports/shm/line_copy.h"

namespace entrain::shm {
namespace {

constexpr int kRecordsPerRead = 64;
constexpr unsigned kTimeEvery = 2;  // fragments
constexpr size_t kMaxFarewell = 1024;
constexpr uint64_t kPage = 4096;

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
// A message's head, which is taken.
bool IsFor(const Envelope& envelope, ConstBytes* payload) {
  WireEnvelope head;
  return Take(payload, &head) && head.tag == envelope.tag.bits() &&
         head.descriptor == envelope.descriptor;
}

// A part of a message.
void CopyTo(const Incoming& incoming, std::byte* to, const std::byte* from, size_t bytes) {
  if (incoming.cold()) {
    StreamCopy(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

template <typename Wire>
bool TakeAll(ConstBytes payload, Wire* wire) {
  return Take(&payload, wire) && payload.empty();
}

}  // namespace

Intake::Intake(Endpoint* endpoint, Events* events, CompletionList* completions, Outbox* outbox,
               const Limits& limits, Surroundings* around)
    : events_(events),
      endpoint_(endpoint),
      outbox_(outbox),
      limits_(limits),
      around_(around),
      queue_(endpoint, events, completions, limits.credit) {}

void Intake::Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) {
  if (Incoming* incoming = queue_.Post(envelope, bytes, done, hint)) {
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

Endpoint::Next Intake::TakeNow(const Envelope& envelope, Bytes into, const std::byte** where) {
  const std::byte* data = nullptr;
  const Endpoint::Next next = FindNow(envelope, into, &data);
  if (next != Endpoint::Next::kThis) {
    return next;
  }
  const bool in_ring = data != into.data();
  const bool by_lines = in_ring && into.size() <= MostByLines(around_->spare_cores);
  if (where != nullptr) {
    *where = data;
    if (by_lines) {
      FetchLines(data, into.size());
    }
    return next;
  }
  if (by_lines) {
    CopyOutOfLines(into.data(), data, into.size());
  } else if (in_ring) {
    std::memcpy(into.data(), data, into.size());
  }
  Settle();
  return next;
}

Endpoint::Next Intake::FindNow(const Envelope& envelope, Bytes into, const std::byte** data) {
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
  if (!PeekPastEnds(&record)) {
    return TakeEarly(envelope, into) ? Endpoint::Next::kPart
           : channel_->broken()      ? Endpoint::Next::kOther
                                     : Endpoint::Next::kNothing;
  }
  if (record.kind == kAnnounce) {
    *data = into.data();
    return ReadNow(envelope, record.payload, into) ? Endpoint::Next::kThis : Endpoint::Next::kOther;
  }
  if (record.kind != kEager || record.payload.size() != sizeof(WireEnvelope) + into.size() ||
      !IsFor(envelope, &record.payload)) {
    return Endpoint::Next::kOther;
  }
  *data = record.payload.data();
  if (const size_t early = EarlyBytes(into); early > 0) {
    std::memcpy(into.data() + early, *data + early, into.size() - early);
    *data = into.data();
  }
  looked_at_ = MatchQueue::CostOf(static_cast<int64_t>(into.size()));
  return Endpoint::Next::kThis;
}

bool Intake::PeekPastEnds(RingReader::Record* record) {
  for (int ends = 0; channel_->Peek(record); ++ends) {
    WireDone wire;
    // A breach is left to Poll, which ends the connection; and so is a peer that writes as fast as
    // this reads.
    if (ends == kRecordsPerRead || record->kind != kDone || !TakeAll(record->payload, &wire) ||
        !outbox_->OnDone(wire).ok()) {
      return true;
    }
    channel_->reader().Pop();
    ReleaseNowAndThen();
  }
  return false;
}

Endpoint::Next Intake::HearNow(Ticket ticket) {
  RingReader::Record record;
  const bool more = channel_ != nullptr && PeekPastEnds(&record);
  return outbox_->IsBack(ticket)                             ? Endpoint::Next::kThis
         : more || channel_ == nullptr || channel_->broken() ? Endpoint::Next::kOther
                                                             : Endpoint::Next::kNothing;
}

bool Intake::ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into) {
  const size_t most = around_->spare_cores ? limits_.at_once_bytes : limits_.crowded_at_once_bytes;
  WireAnnounce wire;
  if (!TakeAll(payload, &wire) || wire.envelope.tag != envelope.tag.bits() ||
      wire.envelope.descriptor != envelope.descriptor || wire.bytes != into.size() ||
      into.empty() || into.size() > most || outbox_->waiting()) {
    return false;
  }
  // Invariant 7, as in PullPiece; what went wrong is found out again there.
  if (!(wire.region != 0 ? CopyMapped(wire, into) : ReadWhole(wire.address, into)) ||
      channel_->ClosedByPeer() || channel_->RevokedByPeer(envelope.tag.context()) ||
      !outbox_->DoneNow({wire.handle})) {
    return false;
  }
  channel_->reader().Pop();
  ReleaseNowAndThen();
  return true;
}

bool Intake::ReadWhole(uint64_t address, Bytes into) {
  if (!channel_->can_pull()) {
    return false;
  }
  const bool timed = into.size() >= limits_.share_bytes;
  const bool chosen = timed && around_->spare_cores && SenderMayCopy();
  if (chosen) {
    way_next_ = pace_.Alone(into.size()).Next(into.size(), /*halves=*/true);
    if (way_next_ != LoneMessages::kWhole) {
      return false;  // Decide goes on from that
    }
    way_next_.reset();
  }
  size_t got = 0;
  const int64_t start = timed ? around_->clock->Now() : 0;
  const PeerProcess::Read read = channel_->process().ReadMemoryProved(address, into, &got);
  if (read != PeerProcess::Read::kSome || got < into.size()) {
    return false;
  }
  if (timed) {
    const int64_t ns = around_->clock->Now() - start;
    pace_.Took(Pace::kRead, got, ns);
    if (chosen) {
      pace_.Alone(got).Came(LoneMessages::kWhole, got, ns);
    }
  }
  return true;
}

bool Intake::CopyMapped(const WireAnnounce& wire, Bytes into) {
  if (into.size() >= limits_.share_bytes || !regions_.Has(wire.region)) {
    return false;  // a long one may be lent instead
  }
  const auto region = regions_.Find(wire.region, wire.address, wire.bytes);
  if (!region.ok()) {
    return false;
  }
  const auto is_mapped = [&](const PeerRegion& mapped) {
    const auto [head, tail] = mapped.Unmapped(wire.address, wire.bytes);
    return head.bytes + tail.bytes == 0;
  };
  if (*region == nullptr || !is_mapped(**region)) {
    return ReadWhole(wire.address, into);
  }
  std::memcpy(into.data(), (*region)->At(wire.address), into.size());
  return true;
}

// Several messages may have their ends there at a time: each is read where nobody else looks, or is the same bytes.
bool Intake::Complete(const PeerRegion& region, uint64_t address, uint64_t bytes) {
  for (const auto& range : region.Unmapped(address, bytes)) {
    size_t got = 0;
    if (range.bytes > 0 && (!channel_->can_pull() ||
                            channel_->process().ReadMemoryProved(
                                range.address, Bytes(region.At(range.address), range.bytes),
                                &got) != PeerProcess::Read::kSome ||
                            got < range.bytes)) {
      return false;
    }
  }
  return true;
}

size_t Intake::EarlyBytes(Bytes into) const {
  const bool same = early_.at == channel_->reader().taken() && early_.into.data() == into.data() &&
                    early_.into.size() == into.size();
  return same ? early_.bytes : 0;
}

bool Intake::TakeEarly(const Envelope& envelope, Bytes into) {
  RingReader::Record record;
  size_t all = 0;
  if (!channel_->reader().PeekOpen(&record, &all) || record.kind != kEager ||
      all != sizeof(WireEnvelope) + into.size() || !IsFor(envelope, &record.payload)) {
    return false;
  }
  const size_t before = EarlyBytes(into), now = record.payload.size();
  if (now <= before) {
    return false;
  }
  std::memcpy(into.data() + before, record.payload.data() + before, now - before);
  early_ = {channel_->reader().taken(), into, now};
  return true;
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
      farewell_ = CleanText(AsText(record.payload.subspan(0, kMaxFarewell)));
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
    if (!regions_.Has(wire.region)) {
      ENTRAIN_RETURN_IF_ERROR(TakeOffers());
    }
    ENTRAIN_ASSIGN_OR_RETURN(remote.region, regions_.Find(wire.region, wire.address, wire.bytes));
    if (remote.region != nullptr && !Complete(*remote.region, wire.address, wire.bytes)) {
      remote.region = nullptr;
    }
  }
  around_->receiving += remotes_.size() == 0 ? 1 : 0;
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
  } else {
    remote->front = remote->bytes;
    fresh_.push_back(handle);
  }
}

void Intake::Lend(Remote* remote, uint64_t handle) {
  Incoming* const incoming = std::exchange(remote->incoming, nullptr);
  *incoming->loan() = {remote->data(), handle};
  remote->lent = true;
  queue_.Advance(incoming, incoming->left());
}

absl::Status Intake::Release(Loan* loan) {
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

// Where the sender is awake, has a core of its own, and does not fetch from here itself, it copies
// too: of a single message half or all, if that is the quickest, of several every other one. Where cores
// are shared, all of a long single one, if that is the quickest; and of a very long one and of what no
// cache holds, if that is less work.
uint64_t Intake::Decide(Remote* remote) {
  const uint64_t all = remote->bytes;
  if (remote->region != nullptr || all == 0) {
    return all;
  }
  if (!channel_->can_pull()) {
    return 0;
  }
  const bool alone = fresh_.size() == 1 && pulling_ + pushing_ == 0;
  if (!around_->spare_cores && channel_->PeerPolls() &&
      (remote->incoming->cold() || (alone && all >= Pace::kVeryLong))) {
    remote->weighed = true;
    return pace_.RingIsLessWork(all, around_->receiving, around_->sending > 0) ? 0 : all;
  }
  const auto asked = std::exchange(way_next_, std::nullopt);
  const bool halves = around_->spare_cores;
  if (alone && all >= (halves ? limits_.share_bytes : Pace::kLong) && SenderMayCopy()) {
    remote->way = asked.has_value() ? *asked : pace_.Alone(all).Next(all, halves);
    remote->since = around_->clock->Now();
    return remote->way == LoneMessages::kWhole  ? all
           : remote->way == LoneMessages::kHalf ? all / 2 - (remote->address + all / 2) % kPage
                                                : 0;
  }
  // Reading in smaller pieces costs more.
  return !alone && Shares(all) && pushing_ <= pulling_ ? 0 : all;
}

bool Intake::SenderMayCopy() const {
  return !outbox_->announced() && channel_->PeerPolls();
}

bool Intake::Shares(uint64_t bytes) {
  return bytes >= limits_.share_bytes && around_->spare_cores && SenderMayCopy() &&
         pace_.RingIsQuicker();
}

void Intake::AskForPush(Remote* remote, uint64_t handle, uint64_t from) {
  remote->next = from;
  remote->until = std::exchange(remote->front, from);
  remote->last = remote->read == from;
  outbox_->Control(kPush, WirePush{.handle = remote->handle,
                                   .to = handle,
                                   .offset = from,
                                   .bytes = remote->until - from,
                                   .last = remote->last});
}

void Intake::Forget(uint64_t handle) {
  const Remote& remote = *remotes_.Find(handle);
  pulling_ -= remote.pulling;
  pushing_ -= remote.pushing;
  remotes_.Remove(handle);
  around_->receiving -= remotes_.size() == 0 ? 1 : 0;
}

void Intake::Finish(uint64_t handle) {
  outbox_->Control(kDone, WireDone{remotes_.Find(handle)->handle});
  Forget(handle);
}

int Intake::Pull() {
  auto events = static_cast<int>(fresh_.size());
  for (const uint64_t handle : fresh_) {
    Remote* remote = remotes_.Find(handle);
    if (remote == nullptr) {  // withdrawn
      continue;
    }
    const uint64_t front = remote->incoming->dropped() ? remote->bytes : Decide(remote);
    pulling_ += remote->pulling = front;
    pushing_ += remote->pushing = remote->bytes - front;
    if (front < remote->bytes) {
      AskForPush(remote, handle, front);
    }
    if (front > 0 || remote->bytes == 0) {
      pulls_.push_back(handle);
    }
  }
  fresh_.clear();
  while (!pulls_.empty() && !peer_gone_) {
    const uint64_t handle = pulls_.front();
    Remote* remote = remotes_.Find(handle);
    if (remote == nullptr || remote->unreadable) {  // done, withdrawn, or all comes by the ring
      pulls_.pop_front();
    } else if (remote->incoming->dropped()) {
      queue_.Abandon(remote->incoming);
      Finish(handle);
      ++events;
    } else if (remote->read == remote->front) {
      pulls_.pop_front();
      Proceed(remote, handle);
    } else {
      PullPiece(remote, handle);
      return events + 1;
    }
  }
  return events;
}

// Invariant 7: what was copied counts only if the sender had not revoked it by then.
void Intake::PullPiece(Remote* remote, uint64_t handle) {
  Incoming* incoming = remote->incoming;
  if (!channel_->can_pull() && remote->region == nullptr) {  // found out while this one waited
    remote->unreadable = true;
    Proceed(remote, handle);
    return;
  }
  const Bytes into = incoming->writable().subspan(
      remote->read, std::min<uint64_t>(limits_.piece_bytes, remote->front - remote->read));
  size_t got = 0;
  const int64_t start = around_->clock->Now();
  const auto read = ReadPiece(*remote, into, &got);
  if (got >= Pace::kLeast && remote->region == nullptr) {
    Timed(*remote, Pace::kRead, got, start);
  }
  if (channel_->ClosedByPeer() || read == PeerProcess::Read::kGone) {
    peer_gone_ = true;
    return;
  }
  if (channel_->RevokedByPeer(remote->tag.context())) {
    queue_.Fail(incoming, absl::AbortedError("revoked by the peer that was sending"));
    Forget(handle);
    return;
  }
  if (read == PeerProcess::Read::kForbidden) {
    channel_->StopPulling("forbidden");
  }
  remote->unreadable = read != PeerProcess::Read::kSome;
  remote->read += got;
  Proceed(remote, handle);
}

void Intake::Timed(const Remote& remote, Pace::Copy copy, size_t bytes, int64_t start) {
  const int64_t ns = around_->clock->Now() - start;
  if (!remote.incoming->cold()) {
    pace_.Took(copy, bytes, ns);
  }
  if (remote.weighed) {
    pace_.Worked(copy, bytes, ns);
  }
}

PeerProcess::Read Intake::ReadPiece(const Remote& remote, Bytes into, size_t* got) const {
  if (remote.region != nullptr) {
    CopyTo(*remote.incoming, into.data(), remote.data() + remote.read, into.size());
    *got = into.size();
    return PeerProcess::Read::kSome;
  }
  const PeerProcess& process = channel_->process();
  // If the last piece is from our peer, then so were those before it.
  return remote.read + into.size() == remote.front
             ? process.ReadMemoryProved(remote.address + remote.read, into, got)
             : process.ReadMemory(remote.address + remote.read, into, got);
}

void Intake::Proceed(Remote* remote, uint64_t handle) {
  if (remote->next < remote->until) {
    return;
  }
  if (remote->read == remote->front) {
    queue_.Advance(remote->incoming, remote->incoming->left());
    if (remote->way.has_value()) {
      pace_.Alone(remote->bytes)
          .Came(*remote->way, remote->bytes, around_->clock->Now() - remote->since);
    }
    if (remote->last) {
      Forget(handle);  // the sender knows that it has sent all
    } else {
      Finish(handle);
    }
  } else if (remote->unreadable) {
    AskForPush(remote, handle, remote->read);
  }
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
  if (remote->next == remote->until || payload.size() > remote->until - remote->next) {
    return Breach("more fragments than announced");
  }
  if (incoming->dropped()) {
    queue_.Abandon(incoming);
    Finish(head.to);
    return absl::OkStatus();
  }
  if (payload.size() >= Pace::kLeast) {  // beyond the ring's first bytes, so all of it exists
    channel_->MapTheirRing();
  }
  const bool timed = payload.size() >= Pace::kLeast && ++fragments_ % kTimeEvery == 0;
  const int64_t start = timed ? around_->clock->Now() : 0;
  CopyTo(*incoming, incoming->writable().data() + remote->next, payload.data(), payload.size());
  if (timed) {
    Timed(*remote, Pace::kTake, payload.size(), start);
    pace_.Puts(CopyTime::Of(head.put_ns_per_mib), head.receivers);
  }
  remote->next += payload.size();
  Proceed(remote, head.to);
  return absl::OkStatus();
}

void Intake::OnWithdraw(Context context) {
  const absl::Status why = absl::AbortedError("revoked by the peer that was sending");
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (remote.tag.context() != context || remote.lent) {  // Release sees it
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
  // What is lent stays mapped until Release; the sender does not wait for that.
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
  fresh_.clear();
  pulls_.clear();
  regions_.Clear();
  remotes_.ForEach([&](uint64_t handle, const Remote& remote) {
    if (!remote.lent) {
      Forget(handle);
    }
  });
}

}  // namespace entrain::shm
