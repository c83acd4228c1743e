#include "transports/shm/tx_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "transports/shm/line_copy.h"

namespace entrain::shm {
namespace {

// A longer eager message is written as an open record, in pieces of this size. So the receiver may
// copy a piece while this side writes the next piece.
constexpr size_t kOpenPiece = 4 << 10;

void Append(std::byte** at, const void* from, size_t bytes) {
  if (bytes > 0) {  // an empty span may be null
    std::memcpy(*at, from, bytes);
    *at += bytes;
  }
}

}  // namespace

void TxQueue::Attach(Channel* channel) {
  channel_ = channel;
  // The dialler has created the ring. Its limits may differ from this side's limits.
  const size_t most = channel->MaxPayload() - sizeof(WireEnvelope);
  limits_.fragment_bytes = std::min(limits_.fragment_bytes, most);
  facts_ = {.can_read = channel->can_pull(),
            .reads = limits_.reads,
            .most_eager = std::min(kMostEager, most)};
}

void TxQueue::Send(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  const Waiting message{envelope, bytes, done};
  if (channel_ == nullptr || !sends_.empty() || !TrySend(message)) {
    sends_.push_back(message);
  }
}

bool TxQueue::TrySend(const Waiting& message) {
  // Without credit, even a small message is sent by RTS. Then it waits on this side, and messages
  // of other tags can overtake it.
  if (!IsEager(message.bytes)) {
    return TryRts(message);
  }
  if (!TryEager(message.envelope, message.bytes, false)) {
    return false;
  }
  completions_->Add(message.done, absl::OkStatus(), static_cast<int64_t>(message.bytes.size()));
  return true;
}

bool TxQueue::IsEager(ConstBytes bytes) {
  const bool credit = Credit() >= MatchQueue::CostOf(static_cast<int64_t>(bytes.size()));
  return Choose({.bytes = bytes.size(), .credit = credit}, facts_) == Way::kEager;
}

void TxQueue::SetSpareCores(bool spare_cores) {
  facts_.spare_cores = spare_cores;
  channel_->TakeAheadUpTo(sizeof(WireEnvelope) + MostByLines(spare_cores));
}

int64_t TxQueue::Credit() {
  const auto left = limits_.credit - static_cast<int64_t>(eager_cost_ - known_consumed_);
  if (left > static_cast<int64_t>(facts_.most_eager) + MatchQueue::kOverhead) {
    return left;
  }
  const uint64_t consumed = channel_->TheirConsumed();
  if (consumed > known_consumed_ && consumed <= eager_cost_) {  // ignores impossible values
    known_consumed_ = consumed;
  }
  return limits_.credit - static_cast<int64_t>(eager_cost_ - known_consumed_);
}

bool TxQueue::TryEager(const Envelope& envelope, ConstBytes bytes, bool conversing) {
  std::byte* at = channel_->Reserve(sizeof(WireEnvelope) + bytes.size(), conversing);
  if (at == nullptr) {
    return false;
  }
  const WireEnvelope head = WireEnvelope::Of(envelope);
  if (bytes.size() <= MostByLines(facts_.spare_cores)) {
    // The head is written last, because it is in the record's first line. This line must be written
    // last (line_copy.h).
    CopyIntoLines(at + sizeof(head), bytes.data(), bytes.size());
    std::memcpy(at, &head, sizeof(head));
  } else {
    Append(&at, &head, sizeof(head));
    size_t written = 0;
    for (; bytes.size() - written > kOpenPiece; written += kOpenPiece) {
      Append(&at, bytes.data() + written, kOpenPiece);
      channel_->Open(kEager, sizeof(head) + written + kOpenPiece);
    }
    Append(&at, bytes.data() + written, bytes.size() - written);
  }
  channel_->Publish(kEager);
  eager_cost_ += static_cast<uint64_t>(MatchQueue::CostOf(static_cast<int64_t>(bytes.size())));
  return true;
}

bool TxQueue::TryRts(const Waiting& message) {
  const Context context = message.envelope.tag.context();
  if (!channel_->CanRevoke(context)) {
    return false;
  }
  if (channel_->Revoked(context)) {
    completions_->Add(message.done,
                      absl::AbortedError(absl::StrCat("context ", context, " has been revoked")),
                      0);
    return true;
  }
  std::byte* at = channel_->Reserve(sizeof(WireRts));
  if (at == nullptr) {
    return false;
  }
  WriteRts(at, message);
  return true;
}

uint64_t TxQueue::WriteRts(std::byte* at, const Waiting& message) {
  const uint64_t handle =
      unfetched_.Add({.tag = message.envelope.tag, .bytes = message.bytes, .done = message.done});
  const WireRts wire{WireEnvelope::Of(message.envelope), message.bytes.size(),
                     reinterpret_cast<uint64_t>(message.bytes.data()), handle,
                     Offer(message.bytes)};
  Append(&at, &wire, sizeof(wire));
  channel_->Publish(kRts);
  return handle;
}

Endpoint::Sent TxQueue::SendNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request) {
  if (channel_ == nullptr || waiting()) {
    return Endpoint::Sent::kNo;
  }
  const bool eager = IsEager(bytes);
  if (eager && TryEager(envelope, bytes, true)) {
    return Endpoint::Sent::kCopied;
  }
  // If the peer cannot read this memory, it would answer the RTS with a CTS. The small message
  // would then need room in the ring, and the ring has no room now.
  const bool waits = eager && !facts_.can_read;
  return !waits && RtsNow(envelope, bytes, request) ? Endpoint::Sent::kRtsSent
                                                    : Endpoint::Sent::kNo;
}

bool TxQueue::RtsNow(const Envelope& envelope, ConstBytes bytes, SendRequest* request) {
  const Context context = envelope.tag.context();
  if (!channel_->CanRevoke(context) || channel_->Revoked(context)) {
    return false;
  }
  std::byte* at = channel_->Reserve(sizeof(WireRts), true);
  if (at == nullptr) {
    return false;
  }
  *request = {WriteRts(at, {envelope, bytes, nullptr}), static_cast<int64_t>(bytes.size())};
  return true;
}

void TxQueue::Await(SendRequest request, Completion* done) {
  if (Unfetched* const message = unfetched_.Find(request.number)) {
    message->done = done;
  } else {
    completions_->Add(done, absl::OkStatus(), request.bytes);
  }
}

bool TxQueue::DoneNow(const WireDone& wire) {
  std::byte* at = waiting() ? nullptr : channel_->Reserve(sizeof(wire), true);
  if (at == nullptr) {
    return false;
  }
  Append(&at, &wire, sizeof(wire));
  channel_->Publish(kDone);
  return true;
}

uint64_t TxQueue::Offer(ConstBytes bytes) {
  const auto region = regions_ == nullptr ? nullptr : regions_->Find(bytes);
  if (region == nullptr) {
    return 0;
  }
  if (offered_.count(region->id) == 0) {
    const WireOffer offer{.region = region->id,
                          .address = reinterpret_cast<uint64_t>(region->whole.data()),
                          .bytes = region->whole.size(),
                          .mapped_address = reinterpret_cast<uint64_t>(region->memory.data()),
                          .mapped_bytes = static_cast<uint64_t>(region->memory.size())};
    if (!channel_->Offer(offer, region->memory.fd())) {
      return 0;  // the socket is full; the next message tries the offer again
    }
    offered_.insert(region->id);
  }
  return region->id;
}

void TxQueue::Retire(const SharedRegion& region) {
  if (channel_ != nullptr && offered_.erase(region.id) == 1) {
    Control(kRetire, WireRetire{region.id});
  }
}

void TxQueue::Control(Kind kind, ConstBytes payload) {
  if (channel_ == nullptr || !controls_.empty() || !TryControl(kind, payload)) {
    controls_.push_back({kind, std::string(AsText(payload))});
  }
}

bool TxQueue::TryControl(Kind kind, ConstBytes payload) {
  std::byte* at = channel_->Reserve(payload.size());
  if (at == nullptr) {
    return false;
  }
  Append(&at, payload.data(), payload.size());
  channel_->Publish(kind);
  return true;
}

int TxQueue::Flush() {
  int events = 0;
  while (!controls_.empty() &&
         TryControl(controls_.front().kind, AsBytes(controls_.front().payload))) {
    controls_.pop_front();
    ++events;
  }
  while (!sends_.empty() && TrySend(sends_.front())) {
    sends_.pop_front();
    ++events;
  }
  return events + (asked_.empty() || !sends_.empty() ? 0 : SendFragments());
}

int TxQueue::SendFragments() {
  int events = 0;
  while (!asked_.empty()) {
    const uint64_t handle = asked_.front();
    Unfetched* const message = unfetched_.Find(handle);
    if (message != nullptr && !SendFragment(message)) {
      break;
    }
    asked_.pop_front();
    if (message == nullptr) {  // the message was revoked or refused meanwhile
      continue;
    }
    ++events;
    if (message->next < message->bytes.size()) {
      asked_.push_back(handle);
    } else {
      Conclude(handle, absl::OkStatus(), message->bytes.size());
    }
  }
  return events;
}

bool TxQueue::SendFragment(Unfetched* message) {
  const ConstBytes piece = message->bytes.subspan(message->next, limits_.fragment_bytes);
  std::byte* at = channel_->Reserve(sizeof(WireFragment) + piece.size());
  if (at == nullptr) {
    return false;
  }
  const WireFragment head{message->to};
  Append(&at, &head, sizeof(head));
  Append(&at, piece.data(), piece.size());
  channel_->Publish(kFragment);
  message->next += piece.size();
  return true;
}

void TxQueue::Conclude(uint64_t handle, const absl::Status& status, size_t moved) {
  const Unfetched& message = *unfetched_.Find(handle);
  if (message.done != nullptr) {
    completions_->Add(message.done, status, static_cast<int64_t>(moved));
  }
  unfetched_.Remove(handle);
}

bool TxQueue::CanFlush() {
  if (channel_ == nullptr || !waiting()) {
    return false;
  }
  const size_t next = !controls_.empty() ? controls_.front().payload.size()
                      : !sends_.empty()  ? sizeof(WireRts) + facts_.most_eager
                                         : sizeof(WireFragment) + limits_.fragment_bytes;
  return channel_->HasRoomFor(next);
}

absl::Status TxQueue::OnDone(const WireDone& wire) {
  if (!unfetched_.Valid(wire.handle)) {
    return Breach("it finished a message without RTS");
  }
  if (Unfetched* message = unfetched_.Find(wire.handle)) {
    // The send also completes if the peer did not want the message. A completed send only means
    // that the buffer may be reused.
    Conclude(wire.handle, absl::OkStatus(), message->bytes.size());
  }
  return absl::OkStatus();
}

absl::Status TxQueue::OnCts(const WireCts& wire) {
  Unfetched* const message = unfetched_.Find(wire.handle);
  if (!unfetched_.Valid(wire.handle) ||
      (message != nullptr && (message->asked_for || wire.offset >= message->bytes.size()))) {
    return Breach("it asked for what is not there");
  }
  if (message != nullptr) {
    message->asked_for = true;
    message->to = wire.to;
    message->next = static_cast<size_t>(wire.offset);
    asked_.push_back(wire.handle);
    if (message->bytes.size() <= facts_.most_eager) {
      facts_.can_read = false;
    }
  }
  return absl::OkStatus();
}

void TxQueue::Revoke(Context theirs, const absl::Status& why) {
  sends_.remove_if([&](const Waiting& message) {
    if (message.envelope.tag.context() != theirs) {
      return false;
    }
    completions_->Add(message.done, why, 0);
    return true;
  });
  if (channel_ == nullptr) {
    return;
  }
  channel_->RevokeContext(theirs);
  bool any = false;
  unfetched_.ForEach([&](uint64_t handle, const Unfetched& message) {
    if (message.tag.context() == theirs) {
      Conclude(handle, why, 0);
      any = true;
    }
  });
  if (any) {
    Control(kWithdraw, WireWithdraw{theirs});
  }
}

void TxQueue::FailAll(const absl::Status& why) {
  if (channel_ != nullptr) {
    channel_->RevokeAll();
  }
  for (const Waiting& message : sends_) {
    completions_->Add(message.done, why, 0);
  }
  unfetched_.ForEach([&](uint64_t handle, const Unfetched&) { Conclude(handle, why, 0); });
  sends_.clear();
  controls_.clear();
  asked_.clear();
}

}  // namespace entrain::shm
