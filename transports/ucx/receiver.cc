#include "transports/ucx/receiver.h"

#include <cstring>

#include "lib/base/status.h"

namespace entrain::ucx {

Receiver::Receiver(Endpoint* endpoint, Events* events, CompletionList* completions, Sender* sender)
    : endpoint_(endpoint),
      events_(events),
      sender_(sender),
      queue_(endpoint, events, completions, sender) {}

absl::Status Receiver::OnParcel(const Header& header, ConstBytes payload) {
  ENTRAIN_RETURN_IF_ERROR(sender_->outgoing().OnCredit(header.credit));
  ENTRAIN_RETURN_IF_ERROR(Sort(header, payload));
  queue_.ReturnCredit();
  return absl::OkStatus();
}

absl::Status Receiver::Sort(const Header& header, ConstBytes payload) {
  switch (header.type) {
    case ParcelType::kEager:
      return queue_.matching().Deliver({Tag::FromBits(header.tag), header.descriptor}, payload);
    case ParcelType::kData:
      return OnData(header, payload);
    case ParcelType::kAnnounce:
      return queue_.OnAnnounce({Tag::FromBits(header.tag), header.descriptor}, header.bytes,
                               header.message);
    case ParcelType::kWithdraw:
      queue_.OnWithdraw(Tag::FromBits(header.tag), header.message);
      return absl::OkStatus();
    case ParcelType::kControl:
      events_->OnControl(*endpoint_,
                         {reinterpret_cast<const char*>(payload.data()), payload.size()});
      return absl::OkStatus();
    case ParcelType::kGrant:
      return sender_->outgoing().OnGrant(header.message);
    case ParcelType::kRefuse:
      return sender_->outgoing().OnRefuse(header.message);
    case ParcelType::kCredit:
      return absl::OkStatus();
    case ParcelType::kHello:
    case ParcelType::kProof:
    case ParcelType::kClose:
      break;
  }
  return BreachOfProtocol("a parcel that is not due");
}

absl::Status Receiver::OnData(const Header& header, ConstBytes payload) {
  ENTRAIN_ASSIGN_OR_RETURN(const Part part, queue_.OnData(header.message, header.bytes));
  if (!part.incoming->dropped() && !payload.empty()) {
    std::memcpy(part.incoming->writable(part.at).data(), payload.data(), payload.size());
  }
  queue_.Advance(part.incoming, header.bytes);
  return absl::OkStatus();
}

}  // namespace entrain::ucx
