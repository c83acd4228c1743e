#include "transports/ucx/receiver.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::ucx {
namespace {

absl::Status Breach(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

}  // namespace

Receiver::Receiver(Endpoint* endpoint, Events* events, CompletionList* completions, Sender* sender)
    : endpoint_(endpoint),
      events_(events),
      sender_(sender),
      queue_(endpoint, events, completions, kCredit) {}

void Receiver::Post(const Envelope& envelope, Bytes into, Completion* done) {
  if (Incoming* incoming = queue_.Post(envelope, into, done)) {
    Answer(incoming);
  }
  if (!failed_) {
    sender_->ReturnCredit(queue_.TakeReleased());
  }
}

// Grants an announcement that has its receive, refuses one that nobody wants.
void Receiver::Answer(Incoming* incoming) {
  if (incoming->dropped()) {
    sender_->Refuse(incoming->handle());
    queue_.Abandon(incoming);
  } else {
    granted_.push_back(incoming);
    sender_->Grant(incoming->handle());
  }
}

void Receiver::Revoke(Context mine, const absl::Status& why) {
  refused_.clear();
  queue_.Revoke(mine, why, &refused_);
  for (uint64_t message : refused_) {
    sender_->Refuse(message);
  }
  sender_->ReturnCredit(queue_.TakeReleased());
}

void Receiver::FailAll(const absl::Status& why) {
  failed_ = true;
  queue_.FailAll(why);
  granted_.clear();
}

absl::Status Receiver::OnParcel(const Header& header, ConstBytes payload) {
  ENTRAIN_RETURN_IF_ERROR(sender_->OnCredit(header.credit));
  ENTRAIN_RETURN_IF_ERROR(Sort(header, payload));
  if (!failed_) {
    sender_->ReturnCredit(queue_.TakeReleased());
  }
  return absl::OkStatus();
}

absl::Status Receiver::Sort(const Header& header, ConstBytes payload) {
  switch (header.type) {
    case ParcelType::kEager:
      return queue_.Deliver({Tag::FromBits(header.tag), header.descriptor}, payload);
    case ParcelType::kData:
      return OnData(header, payload);
    case ParcelType::kAnnounce:
      return OnAnnounce(header);
    case ParcelType::kWithdraw:
      OnWithdraw(header);
      return absl::OkStatus();
    case ParcelType::kControl:
      events_->OnControl(*endpoint_,
                         {reinterpret_cast<const char*>(payload.data()), payload.size()});
      return absl::OkStatus();
    case ParcelType::kGrant:
      return sender_->OnGrant(header.message);
    case ParcelType::kRefuse:
      return sender_->OnRefuse(header.message);
    case ParcelType::kCredit:
      return absl::OkStatus();
    case ParcelType::kHello:
    case ParcelType::kProof:
    case ParcelType::kClose:
      break;
  }
  return Breach("a parcel that is not due");
}

absl::Status Receiver::OnData(const Header& header, ConstBytes payload) {
  Incoming* incoming = FindGranted(header.message);
  if (incoming == nullptr) {
    return Breach("data of a message that was not granted");
  }
  if (header.bytes > incoming->left() || (header.bytes == 0 && incoming->bytes() > 0)) {
    return Breach(
        absl::StrCat("a parcel of ", header.bytes, " bytes, ", incoming->left(), " are missing"));
  }
  if (!incoming->dropped() && !payload.empty()) {
    std::memcpy(incoming->writable().data(), payload.data(), payload.size());
  }
  if (header.bytes == incoming->left()) {
    ForgetGranted(incoming);
  }
  queue_.Advance(incoming, header.bytes);
  return absl::OkStatus();
}

absl::Status Receiver::OnAnnounce(const Header& header) {
  if (header.message == 0) {
    return Breach("an announcement without a number");
  }
  ENTRAIN_ASSIGN_OR_RETURN(Incoming * incoming,
                           queue_.Announce({Tag::FromBits(header.tag), header.descriptor},
                                           header.bytes, header.message));
  if (incoming != nullptr && !failed_) {
    Answer(incoming);
  }
  return absl::OkStatus();
}

void Receiver::OnWithdraw(const Header& header) {
  const absl::Status why = absl::AbortedError("the sender revoked its communicator");
  if (Incoming* incoming = FindGranted(header.message)) {
    ForgetGranted(incoming);
    queue_.Fail(incoming, why);
  } else {
    queue_.Withdraw(Tag::FromBits(header.tag), header.message, why);
  }
}

Incoming* Receiver::FindGranted(uint64_t message) const {
  const auto found = std::find_if(granted_.begin(), granted_.end(), [&](const Incoming* incoming) {
    return incoming->handle() == message;
  });
  return found == granted_.end() ? nullptr : *found;
}

void Receiver::ForgetGranted(Incoming* incoming) {
  granted_.erase(std::find(granted_.begin(), granted_.end(), incoming));
}

}  // namespace entrain::ucx
