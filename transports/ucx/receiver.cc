#include "transports/ucx/receiver.h"

#include <cstring>

#include "lib/base/status.h"

namespace entrain::ucx {

Receiver::Receiver(Endpoint* endpoint, Events* events, CompletionList* completions, Sender* sender)
    : endpoint_(endpoint),
      events_(events),
      sender_(sender),
      queue_(endpoint, events, completions, sender) {}

absl::Status Receiver::OnPacket(const PacketHeader& header, ConstBytes payload) {
  ENTRAIN_RETURN_IF_ERROR(sender_->outgoing().OnCredit(header.credit));
  ENTRAIN_RETURN_IF_ERROR(Sort(header, payload));
  queue_.ReturnCredit();
  return absl::OkStatus();
}

absl::Status Receiver::Sort(const PacketHeader& header, ConstBytes payload) {
  switch (header.type) {
    case PacketType::kEager:
      return queue_.matching().Deliver({Tag::FromBits(header.tag), header.descriptor}, payload);
    case PacketType::kData:
      return OnData(header, payload);
    case PacketType::kControl:
      events_->OnControl(*endpoint_,
                         {reinterpret_cast<const char*>(payload.data()), payload.size()});
      return absl::OkStatus();
    default:
      return queue_.OnPacket(header, &sender_->outgoing());
  }
}

absl::Status Receiver::OnData(const PacketHeader& header, ConstBytes payload) {
  ENTRAIN_ASSIGN_OR_RETURN(const PayloadPart part, queue_.OnData(header.message, header.bytes));
  if (!part.incoming->dropped() && !payload.empty()) {
    std::memcpy(part.incoming->writable(part.at).data(), payload.data(), payload.size());
  }
  queue_.Advance(part.incoming, header.bytes);
  return absl::OkStatus();
}

}  // namespace entrain::ucx
