#include "transports/shm/rx_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/base/text.h"
#include "transports/shm/line_copy.h"

namespace entrain::shm {
namespace {

constexpr int kRecordsPerRead = 64;
constexpr size_t kMaxFarewell = 1024;

// Removes the head of a message from `payload`. Returns true if the head has this envelope.
bool IsFor(const Envelope& envelope, ConstBytes* payload) {
  WireEnvelope head;
  return Take(payload, &head) && head.tag == envelope.tag.bits() &&
         head.descriptor == envelope.descriptor;
}

}  // namespace

RxQueue::RxQueue(Endpoint* endpoint, Events* events, CompletionList* completions, TxQueue* tx,
                 const Limits& limits)
    : events_(events),
      endpoint_(endpoint),
      tx_(tx),
      limits_(limits),
      queue_(endpoint, events, completions, limits.credit),
      rendezvous_(&queue_, tx, limits) {}

void RxQueue::Attach(Channel* channel) {
  channel_ = channel;
  rendezvous_.Attach(channel);
}

void RxQueue::Post(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) {
  if (Incoming* incoming = queue_.Post(envelope, bytes, done, hint)) {
    rendezvous_.OnMatched(incoming);
  }
  if (!ended_) {
    ReturnCredit();
  }
}

absl::StatusOr<int> RxQueue::Read() {
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

Endpoint::Next RxQueue::TakeNow(const Envelope& envelope, Bytes into, const std::byte** where) {
  const std::byte* data = nullptr;
  const Endpoint::Next next = FindNow(envelope, into, &data);
  if (next != Endpoint::Next::kThis) {
    return next;
  }
  const bool in_ring = data != into.data();
  const bool by_lines = in_ring && into.size() <= MostByLines(facts().spare_cores);
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

Endpoint::Next RxQueue::FindNow(const Envelope& envelope, Bytes into, const std::byte** data) {
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
    return FindOpen(envelope, into);
  }
  if (record.kind == kRts) {
    *data = into.data();
    return ReadNow(envelope, record.payload, into) ? Endpoint::Next::kThis : Endpoint::Next::kOther;
  }
  if (record.kind != kEager || record.payload.size() != sizeof(WireEnvelope) + into.size() ||
      !IsFor(envelope, &record.payload)) {
    return Endpoint::Next::kOther;
  }
  *data = record.payload.data();
  const uint64_t at = channel_->reader().taken();
  if (open_.Copied(at, into) > 0) {
    open_.CopyOn(at, record.payload, into);
    *data = into.data();
  }
  looked_at_ = MatchQueue::CostOf(static_cast<int64_t>(into.size()));
  return Endpoint::Next::kThis;
}

bool RxQueue::PeekPastEnds(RingReader::Record* record) {
  for (int ends = 0; channel_->Peek(record); ++ends) {
    WireDone wire;
    // Only Poll can handle a breach of the protocol, because a breach ends the connection. The
    // limit ends this loop if the peer writes as fast as the loop reads.
    if (ends == kRecordsPerRead || record->kind != kDone || !TakeAll(record->payload, &wire) ||
        !tx_->OnDone(wire).ok()) {
      return true;
    }
    channel_->reader().Pop();
    ReleaseNowAndThen();
  }
  return false;
}

Endpoint::Next RxQueue::HearNow(SendRequest request) {
  RingReader::Record record;
  const bool more = channel_ != nullptr && PeekPastEnds(&record);
  return tx_->IsBack(request)                                ? Endpoint::Next::kThis
         : more || channel_ == nullptr || channel_->broken() ? Endpoint::Next::kOther
                                                             : Endpoint::Next::kNothing;
}

bool RxQueue::ReadNow(const Envelope& envelope, ConstBytes payload, Bytes into) {
  WireRts wire;
  if (!TakeAll(payload, &wire) || wire.envelope.tag != envelope.tag.bits() ||
      wire.envelope.descriptor != envelope.descriptor || wire.bytes != into.size() ||
      into.empty() || into.size() > limits_.at_once_bytes || tx_->waiting() ||
      !rendezvous_.ReadNow(wire, envelope.tag.context(), into)) {
    return false;
  }
  channel_->reader().Pop();
  ReleaseNowAndThen();
  return true;
}

Endpoint::Next RxQueue::FindOpen(const Envelope& envelope, Bytes into) {
  RingReader::Record record;
  size_t all = 0;
  if (channel_->reader().PeekOpen(&record, &all) && record.kind == kEager &&
      all == sizeof(WireEnvelope) + into.size() && IsFor(envelope, &record.payload) &&
      open_.CopyOn(channel_->reader().taken(), record.payload, into)) {
    return Endpoint::Next::kPart;
  }
  return channel_->broken() ? Endpoint::Next::kOther : Endpoint::Next::kNothing;
}

bool RxQueue::OpenRecord::CopyOn(uint64_t at, ConstBytes payload, Bytes into) {
  const size_t before = Copied(at, into), now = payload.size();
  if (now <= before) {
    return false;
  }
  std::memcpy(into.data() + before, payload.data() + before, now - before);
  at_ = at;
  into_ = into;
  bytes_ = now;
  return true;
}

void RxQueue::LetGo() {
  channel_->reader().Pop();
  ReleaseNowAndThen();
  channel_->AddConsumed(looked_at_);
  looked_at_ = 0;
}

void RxQueue::ReleaseNowAndThen() {
  if (channel_->reader().unreleased() >= channel_->MaxPayload() / 2) {
    channel_->Release();
  }
}

absl::Status RxQueue::Handle(const RingReader::Record& record) {
  // Calls `on` with the record if the record's length is right for its kind.
  const auto whole = [&record](auto wire, const char* what, auto on) {
    return TakeAll(record.payload, &wire) ? on(wire) : Breach(what);
  };
  switch (record.kind) {
    case kEager:
      return OnEager(record.payload);
    case kRts:
      return whole(WireRts{}, "a short RTS",
                   [&](const WireRts& wire) { return rendezvous_.OnRts(wire); });
    case kDone:
      return whole(WireDone{}, "a short end",
                   [&](const WireDone& wire) { return tx_->OnDone(wire); });
    case kCts:
      return whole(WireCts{}, "a short request",
                   [&](const WireCts& wire) { return tx_->OnCts(wire); });
    case kFragment:
      return rendezvous_.OnFragment(record.payload);
    case kWithdraw:
      return OnWithdraw(record.payload);
    case kControl:
      return OnControl(record.payload);
    case kRetire:
      return whole(WireRetire{}, "a short retirement",
                   [&](const WireRetire& wire) { return rendezvous_.OnRetire(wire); });
    case kBye:
      farewell_ = CleanText(AsText(record.payload.subspan(0, kMaxFarewell)));
      return absl::OkStatus();
    default:
      return Breach(absl::StrCat("a record of unknown kind ", record.kind));
  }
}

absl::Status RxQueue::OnEager(ConstBytes payload) {
  WireEnvelope head;
  if (!Take(&payload, &head)) {
    return Breach("a message without an envelope");
  }
  return queue_.Deliver(head.envelope(), payload);
}

absl::Status RxQueue::OnWithdraw(ConstBytes payload) {
  WireWithdraw wire;
  if (!TakeAll(payload, &wire) || wire.context >= Side::kContexts) {
    return Breach("a withdrawal of no context");
  }
  rendezvous_.OnWithdraw(static_cast<Context>(wire.context));
  return absl::OkStatus();
}

absl::Status RxQueue::OnControl(ConstBytes payload) {
  const std::string text(AsText(payload));
  if (text.size() > static_cast<size_t>(kMaxControlBytes)) {
    return Breach("a control message too long");
  }
  events_->OnControl(*endpoint_, text);
  return absl::OkStatus();
}

void RxQueue::ReturnCredit() {
  if (const int64_t released = queue_.TakeReleased(); released > 0 && channel_ != nullptr) {
    channel_->AddConsumed(released);
  }
}

void RxQueue::Revoke(Context mine, const absl::Status& why) {
  refused_.clear();
  queue_.Revoke(mine, why, &refused_);
  for (const uint64_t handle : refused_) {
    rendezvous_.Finish(handle);
  }
  rendezvous_.RevokeLoans(mine);
  ReturnCredit();
}

void RxQueue::FailAll(const absl::Status& why) {
  ended_ = true;
  queue_.FailAll(why);
  rendezvous_.FailAll();
}

}  // namespace entrain::shm
