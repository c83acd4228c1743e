#include "transports/shm/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "transports/shm/line_copy.h"

namespace entrain::shm {
namespace {

// Of a longer message the receiver may take pieces of this while the next are written.
constexpr size_t kOpenPiece = 4 << 10;
constexpr unsigned kTimeEvery = 2;  // fragments

void Append(std::byte** at, const void* from, size_t bytes) {
  if (bytes > 0) {  // an empty span may be null
    std::memcpy(*at, from, bytes);
    *at += bytes;
  }
}

}  // namespace

Outbox::Outbox(CompletionList* completions, const Limits& limits, const SharedRegions* regions,
               Surroundings* around)
    : completions_(completions), regions_(regions), around_(around), limits_(limits) {}

void Outbox::Attach(Channel* channel) {
  channel_ = channel;
  // The ring is the dialler's, whose limits may be others.
  const size_t most = channel->MaxPayload() - sizeof(WireEnvelope);
  limits_.eager_bytes = std::min(limits_.eager_bytes, most);
  limits_.fragment_bytes = std::min(limits_.fragment_bytes, most);
  peer_reads_ = channel->can_pull();
  ChooseEager();
}

void Outbox::Send(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  const Waiting message{envelope, bytes, done};
  if (channel_ == nullptr || !sends_.empty() || !TrySend(message)) {
    sends_.push_back(message);
  }
}

bool Outbox::TrySend(const Waiting& message) {
  // Without credit even a small message is announced: so it waits here, and others pass it.
  if (!IsEager(message.bytes)) {
    return TryAnnounce(message);
  }
  if (!TryEager(message.envelope, message.bytes, false)) {
    return false;
  }
  completions_->Add(message.done, absl::OkStatus(), static_cast<int64_t>(message.bytes.size()));
  return true;
}

bool Outbox::IsEager(ConstBytes bytes) {
  return bytes.size() <= eager_now_ &&
         Credit() >= MatchQueue::CostOf(static_cast<int64_t>(bytes.size()));
}

void Outbox::OnCores() {
  channel_->TakeAheadUpTo(sizeof(WireEnvelope) + MostByLines(around_->spare_cores));
  ChooseEager();
}

void Outbox::ChooseEager() {
  eager_now_ = around_->spare_cores && peer_reads_
                   ? std::min(limits_.quick_bytes, limits_.eager_bytes)
                   : limits_.eager_bytes;
}

int64_t Outbox::Credit() {
  const auto left = limits_.credit - static_cast<int64_t>(eager_cost_ - known_consumed_);
  if (left > static_cast<int64_t>(limits_.eager_bytes) + MatchQueue::kOverhead) {
    return left;
  }
  const uint64_t consumed = channel_->TheirConsumed();
  if (consumed > known_consumed_ && consumed <= eager_cost_) {  // anything else is nonsense
    known_consumed_ = consumed;
  }
  return limits_.credit - static_cast<int64_t>(eager_cost_ - known_consumed_);
}

bool Outbox::TryEager(const Envelope& envelope, ConstBytes bytes, bool conversing) {
  std::byte* at = channel_->Reserve(sizeof(WireEnvelope) + bytes.size(), conversing);
  if (at == nullptr) {
    return false;
  }
  const WireEnvelope head = WireEnvelope::Of(envelope);
  if (bytes.size() <= MostByLines(around_->spare_cores)) {
    // And the head behind it: all that is in the first line comes last.
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

bool Outbox::TryAnnounce(const Waiting& message) {
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
  std::byte* at = channel_->Reserve(sizeof(WireAnnounce));
  if (at == nullptr) {
    return false;
  }
  Announce(at, message);
  return true;
}

uint64_t Outbox::Announce(std::byte* at, const Waiting& message) {
  around_->sending += announced() ? 0 : 1;
  const uint64_t handle =
      announced_.Add({.tag = message.envelope.tag, .bytes = message.bytes, .done = message.done});
  const WireAnnounce wire{WireEnvelope::Of(message.envelope), message.bytes.size(),
                          reinterpret_cast<uint64_t>(message.bytes.data()), handle,
                          Offer(message.bytes)};
  Append(&at, &wire, sizeof(wire));
  channel_->Publish(kAnnounce);
  return handle;
}

Endpoint::Sent Outbox::SendNow(const Envelope& envelope, ConstBytes bytes, Ticket* ticket) {
  if (channel_ == nullptr || waiting()) {
    return Endpoint::Sent::kNo;
  }
  const bool eager = IsEager(bytes);
  if (eager && TryEager(envelope, bytes, true)) {
    return Endpoint::Sent::kCopied;
  }
  // A peer that cannot read a small message would ask for it through the ring, which has no room now.
  const bool waits = eager && !peer_reads_;
  return !waits && AnnounceNow(envelope, bytes, ticket) ? Endpoint::Sent::kAnnounced
                                                        : Endpoint::Sent::kNo;
}

bool Outbox::AnnounceNow(const Envelope& envelope, ConstBytes bytes, Ticket* ticket) {
  const Context context = envelope.tag.context();
  if (!channel_->CanRevoke(context) || channel_->Revoked(context)) {
    return false;
  }
  std::byte* at = channel_->Reserve(sizeof(WireAnnounce), true);
  if (at == nullptr) {
    return false;
  }
  *ticket = {Announce(at, {envelope, bytes, nullptr}), static_cast<int64_t>(bytes.size())};
  return true;
}

void Outbox::Await(Ticket ticket, Completion* done) {
  if (Announced* const message = announced_.Find(ticket.number)) {
    message->done = done;
  } else {
    completions_->Add(done, absl::OkStatus(), ticket.bytes);
  }
}

bool Outbox::DoneNow(const WireDone& wire) {
  std::byte* at = waiting() ? nullptr : channel_->Reserve(sizeof(wire), true);
  if (at == nullptr) {
    return false;
  }
  Append(&at, &wire, sizeof(wire));
  channel_->Publish(kDone);
  return true;
}

uint64_t Outbox::Offer(ConstBytes bytes) {
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
      return 0;  // the socket is full: with the next message
    }
    offered_.insert(region->id);
  }
  return region->id;
}

void Outbox::Retire(const SharedRegion& region) {
  if (channel_ != nullptr && offered_.erase(region.id) == 1) {
    Control(kRetire, WireRetire{region.id});
  }
}

void Outbox::Control(Kind kind, ConstBytes payload) {
  if (channel_ == nullptr || !controls_.empty() || !TryControl(kind, payload)) {
    controls_.push_back({kind, std::string(AsText(payload))});
  }
}

bool Outbox::TryControl(Kind kind, ConstBytes payload) {
  std::byte* at = channel_->Reserve(payload.size());
  if (at == nullptr) {
    return false;
  }
  Append(&at, payload.data(), payload.size());
  channel_->Publish(kind);
  return true;
}

int Outbox::Flush() {
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
  return events + (pushes_.empty() || !sends_.empty() ? 0 : Push());
}

// Fragments of all that are asked for, in turn, as far as there is room.
int Outbox::Push() {
  int events = 0;
  while (!pushes_.empty()) {
    Announced* message = announced_.Find(pushes_.front());
    if (message == nullptr) {  // revoked, or refused meanwhile
      pushes_.pop_front();
      continue;
    }
    const size_t piece = std::min(limits_.fragment_bytes, message->until - message->next);
    std::byte* at = channel_->Reserve(sizeof(WireFragment) + piece);
    if (at == nullptr) {
      break;
    }
    const WireFragment head{message->to, put_.ns_per_mib(),
                            static_cast<uint32_t>(around_->sending)};
    Append(&at, &head, sizeof(head));
    const bool timed = piece >= Pace::kLeast && ++fragments_ % kTimeEvery == 0;
    const int64_t start = timed ? around_->clock->Now() : 0;
    Append(&at, message->bytes.data() + message->next, piece);
    if (timed) {
      put_.Note(piece, around_->clock->Now() - start);
    }
    channel_->Publish(kFragment);
    ++events;
    message->next += piece;
    const uint64_t handle = pushes_.front();
    pushes_.pop_front();
    if (message->next < message->until) {
      pushes_.push_back(handle);
    } else if (message->last) {
      Conclude(handle, absl::OkStatus(), message->bytes.size());
    }
  }
  return events;
}

void Outbox::Conclude(uint64_t handle, const absl::Status& status, size_t moved) {
  const Announced& message = *announced_.Find(handle);
  if (message.done != nullptr) {
    completions_->Add(message.done, status, static_cast<int64_t>(moved));
  }
  announced_.Remove(handle);
  around_->sending -= announced() ? 0 : 1;
}

bool Outbox::CanFlush() {
  if (channel_ == nullptr || !waiting()) {
    return false;
  }
  const size_t next = !controls_.empty() ? controls_.front().payload.size()
                      : !sends_.empty()  ? sizeof(WireAnnounce) + limits_.eager_bytes
                                         : sizeof(WireFragment) + limits_.fragment_bytes;
  return channel_->HasRoomFor(next);
}

absl::Status Outbox::OnDone(const WireDone& wire) {
  if (!announced_.Valid(wire.handle)) {
    return absl::UnavailableError(
        "the peer broke the protocol: it finished what was not announced");
  }
  if (Announced* message = announced_.Find(wire.handle)) {
    // Also when the peer did not want it: the buffer may be reused, and that is what a send says.
    Conclude(wire.handle, absl::OkStatus(), message->bytes.size());
  }
  return absl::OkStatus();
}

absl::Status Outbox::OnPush(const WirePush& wire) {
  Announced* message = announced_.Find(wire.handle);
  if (!announced_.Valid(wire.handle) ||
      (message != nullptr &&
       (message->last || message->next < message->until || wire.bytes == 0 ||
        wire.offset > message->bytes.size() || wire.bytes > message->bytes.size() - wire.offset))) {
    return absl::UnavailableError("the peer broke the protocol: it asked for what is not there");
  }
  if (message != nullptr) {
    message->to = wire.to;
    message->next = static_cast<size_t>(wire.offset);
    message->until = message->next + static_cast<size_t>(wire.bytes);
    message->last = wire.last != 0;
    pushes_.push_back(wire.handle);
    if (message->bytes.size() <= limits_.eager_bytes && std::exchange(peer_reads_, false)) {
      ChooseEager();
    }
  }
  return absl::OkStatus();
}

void Outbox::Revoke(Context theirs, const absl::Status& why) {
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
  announced_.ForEach([&](uint64_t handle, const Announced& message) {
    if (message.tag.context() == theirs) {
      Conclude(handle, why, 0);
      any = true;
    }
  });
  if (any) {
    Control(kWithdraw, WireWithdraw{theirs});
  }
}

void Outbox::FailAll(const absl::Status& why) {
  if (channel_ != nullptr) {
    channel_->RevokeAll();
  }
  for (const Waiting& message : sends_) {
    completions_->Add(message.done, why, 0);
  }
  announced_.ForEach([&](uint64_t handle, const Announced&) { Conclude(handle, why, 0); });
  sends_.clear();
  controls_.clear();
  pushes_.clear();
}

}  // namespace entrain::shm
