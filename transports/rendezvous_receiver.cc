#include "transports/rendezvous_receiver.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

RendezvousReceiver::RendezvousReceiver(Endpoint* endpoint, Events* events,
                                       CompletionList* completions, Answers* answers)
    : answers_(answers), matching_(endpoint, events, completions, kEarlyCredit) {}

void RendezvousReceiver::Post(const Envelope& envelope, Bytes into, Completion* done,
                              RecvHint hint) {
  if (Incoming* incoming = matching_.Post(envelope, into, done, hint)) {
    Answer(incoming);
  }
  ReturnCredit();
}

// If the message is dropped, refuses it. If its receive is posted, sends CTS. `incoming` is a
// message that was sent by RTS.
void RendezvousReceiver::Answer(Incoming* incoming) {
  const uint64_t message = incoming->handle();
  if (incoming->dropped() && !lent_) {
    matching_.Abandon(incoming);
    answers_->Refuse(message);
    return;
  }
  open_.try_emplace(message, incoming);
  if (incoming->dropped()) {
    answers_->Refuse(message);
  } else if (!incoming->unclaimed() &&
             (incoming->begun() < incoming->bytes() || incoming->bytes() == 0)) {
    answers_->ClearToSend(message);
  }
}

void RendezvousReceiver::Revoke(Context mine, const absl::Status& why) {
  refused_.clear();
  matching_.Revoke(mine, why, &refused_);
  for (const uint64_t message : refused_) {
    answers_->Refuse(message);
  }
  ReturnCredit();
}

void RendezvousReceiver::FailAll(const absl::Status& why) {
  failed_ = true;
  matching_.FailAll(why);
  open_.clear();
}

absl::Status RendezvousReceiver::OnRts(const Envelope& envelope, int64_t bytes, uint64_t message) {
  if (message == 0) {
    return BreachOfProtocol("RTS without a number");
  }
  if (lent_ &&
      (Find(message) != nullptr || static_cast<int64_t>(open_.size()) >= MatchQueue::kMaxRts)) {
    return BreachOfProtocol(absl::StrCat("RTS of message ", message, ", beside ", open_.size(),
                                         " messages that are not over"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(Incoming * incoming, matching_.OnRts(envelope, bytes, message, lent_));
  if (incoming != nullptr && !failed_) {
    Answer(incoming);
  }
  return absl::OkStatus();
}

absl::Status RendezvousReceiver::OnPacket(const PacketHeader& header, RendezvousSender* sender) {
  const Tag tag = Tag::FromBits(header.tag);
  switch (header.type) {
    case PacketType::kRts:
      return OnRts({tag, header.descriptor}, header.bytes, header.message);
    case PacketType::kWithdraw:
      OnWithdraw(tag, header.message);
      return absl::OkStatus();
    case PacketType::kCts:
      return sender->OnCts(header.message);
    case PacketType::kRefuse:
      return sender->OnRefuse(header.message);
    case PacketType::kLend:
      return sender->OnLend(header.message);
    case PacketType::kCredit:
      return absl::OkStatus();
    default:
      return BreachOfProtocol(
          absl::StrCat("a packet of type ", static_cast<int>(header.type), " that is not due"));
  }
}

void RendezvousReceiver::OnWithdraw(Tag tag, uint64_t message) {
  const absl::Status why = absl::AbortedError("the sender revoked its communicator");
  if (Incoming* incoming = Find(message)) {
    Forget(incoming);
    if (incoming->unclaimed()) {
      matching_.Withdraw(incoming, why);
    } else {
      matching_.Fail(incoming, why);
    }
  } else {
    matching_.Withdraw(tag, message, why);
  }
}

absl::StatusOr<PayloadPart> RendezvousReceiver::OnData(uint64_t message, int64_t bytes) {
  Incoming* const incoming = Find(message);
  if (incoming == nullptr || incoming->unclaimed()) {
    return BreachOfProtocol("data of a message that was not cleared");
  }
  return Part(incoming, bytes);
}

absl::StatusOr<PayloadPart> RendezvousReceiver::OnAhead(uint64_t message, int64_t bytes) {
  Incoming* const incoming = lent_ ? Find(message) : nullptr;
  if (incoming == nullptr) {
    return BreachOfProtocol("data that went ahead without an RTS, or without lent credit");
  }
  // Part would return an error for other numbers of bytes.
  if (bytes <= incoming->bytes() - incoming->begun()) {
    ENTRAIN_RETURN_IF_ERROR(matching_.Ahead(incoming, bytes));
  }
  return Part(incoming, bytes);
}

absl::StatusOr<PayloadPart> RendezvousReceiver::Part(Incoming* incoming, int64_t bytes) {
  const int64_t at = incoming->begun();
  if (bytes > incoming->bytes() - at || (bytes == 0 && incoming->bytes() > 0)) {
    return BreachOfProtocol(absl::StrCat(bytes, " bytes of a message of which ",
                                         incoming->bytes() - at, " are missing"));
  }
  incoming->Begin(bytes);
  return PayloadPart{incoming, at, bytes};
}

void RendezvousReceiver::Advance(Incoming* incoming, int64_t bytes) {
  if (incoming->handle() != 0 && bytes == incoming->left()) {
    Forget(incoming);
  }
  matching_.Advance(incoming, bytes);
}

void RendezvousReceiver::ReturnCredit() {
  if (!failed_) {
    answers_->ReturnCredit(matching_.TakeReleased());
  }
}

Incoming* RendezvousReceiver::Find(uint64_t message) const {
  const auto found = open_.find(message);
  return found == open_.end() ? nullptr : found->second;
}

void RendezvousReceiver::Forget(Incoming* incoming) {
  open_.erase(incoming->handle());
}

}  // namespace entrain
