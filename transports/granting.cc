#include "transports/granting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "transports/outgoing.h"

namespace entrain {

GrantingQueue::GrantingQueue(Endpoint* endpoint, Events* events, CompletionList* completions,
                             Answers* answers)
    : answers_(answers), matching_(endpoint, events, completions, kEarlyCredit) {}

void GrantingQueue::Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
  if (Incoming* incoming = matching_.Post(envelope, into, done, hint)) {
    Answer(incoming);
  }
  ReturnCredit();
}

// Grants an announcement that has its receive, refuses one that nobody wants.
void GrantingQueue::Answer(Incoming* incoming) {
  if (incoming->dropped()) {
    answers_->Refuse(incoming->handle());
    matching_.Abandon(incoming);
  } else {
    granted_.push_back(incoming);
    answers_->Grant(incoming->handle());
  }
}

void GrantingQueue::Revoke(Context mine, const absl::Status& why) {
  refused_.clear();
  matching_.Revoke(mine, why, &refused_);
  for (const uint64_t message : refused_) {
    answers_->Refuse(message);
  }
  ReturnCredit();
}

void GrantingQueue::FailAll(const absl::Status& why) {
  failed_ = true;
  matching_.FailAll(why);
  granted_.clear();
}

absl::Status GrantingQueue::OnAnnounce(const Envelope& envelope, int64_t bytes, uint64_t message) {
  if (message == 0) {
    return BreachOfProtocol("an announcement without a number");
  }
  ENTRAIN_ASSIGN_OR_RETURN(Incoming * incoming, matching_.Announce(envelope, bytes, message));
  if (incoming != nullptr && !failed_) {
    Answer(incoming);
  }
  return absl::OkStatus();
}

void GrantingQueue::OnWithdraw(Tag tag, uint64_t message) {
  const absl::Status why = absl::AbortedError("the sender revoked its communicator");
  if (Incoming* incoming = Find(message)) {
    Forget(incoming);
    matching_.Fail(incoming, why);
  } else {
    matching_.Withdraw(tag, message, why);
  }
}

absl::StatusOr<Part> GrantingQueue::OnData(uint64_t message, int64_t bytes) {
  Incoming* const incoming = Find(message);
  if (incoming == nullptr) {
    return BreachOfProtocol("data of a message that was not granted");
  }
  const int64_t at = incoming->begun();
  if (bytes > incoming->bytes() - at || (bytes == 0 && incoming->bytes() > 0)) {
    return BreachOfProtocol(absl::StrCat(bytes, " bytes of a message of which ",
                                         incoming->bytes() - at, " are missing"));
  }
  incoming->Begin(bytes);
  return Part{incoming, at, bytes};
}

void GrantingQueue::Advance(Incoming* incoming, int64_t bytes) {
  if (incoming->handle() != 0 && bytes == incoming->left()) {
    Forget(incoming);
  }
  matching_.Advance(incoming, bytes);
}

void GrantingQueue::ReturnCredit() {
  if (!failed_) {
    answers_->ReturnCredit(matching_.TakeReleased());
  }
}

Incoming* GrantingQueue::Find(uint64_t message) const {
  const auto found = std::find_if(granted_.begin(), granted_.end(), [&](const Incoming* incoming) {
    return incoming->handle() == message;
  });
  return found == granted_.end() ? nullptr : *found;
}

void GrantingQueue::Forget(Incoming* incoming) {
  granted_.erase(std::find(granted_.begin(), granted_.end(), incoming));
}

}  // namespace entrain
