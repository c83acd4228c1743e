#include "transports/ucx/sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain::ucx {
namespace {

constexpr int64_t kBytesPerFlush = 1 << 20;  // one turn of the loop stays short
constexpr int64_t kCreditWorthAParcel = kCredit / 4;

absl::Status Breach(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

}  // namespace

void Sender::Post(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (free_.empty()) {
    Send& fresh = sends_.emplace_back();
    fresh.message = kPlaces + sends_.size() - 1;
    free_.push_back(&fresh);
  }
  Send* send = free_.back();
  free_.pop_back();
  const uint64_t message = send->message;
  *send = Send();
  send->envelope = envelope;
  send->data = bytes.data();
  send->bytes = static_cast<int64_t>(bytes.size());
  send->done = done;
  send->message = message;
  send->state = State::kWaiting;
  send->queued = true;
  waiting_.push_back(send);
}

void Sender::Free(Send* send) {
  send->state = State::kFree;
  send->message += kPlaces;  // a new generation
  free_.push_back(send);
}

void Sender::Complete(Send* send, const absl::Status& status) {
  completions_->Add(send->done, status, status.ok() ? send->bytes : 0);
  Free(send);
}

Sender::Send* Sender::Find(uint64_t message) {
  const uint64_t place = message % kPlaces;
  if (place >= sends_.size()) {
    return nullptr;
  }
  Send* send = &sends_[place];
  return send->message == message && send->state != State::kFree ? send : nullptr;
}

void Sender::Urgent(const Header& header, absl::string_view payload) {
  urgent_.push_back({header, std::string(payload)});
  urgent_.back().header.bytes = static_cast<int64_t>(payload.size());
}

absl::Status Sender::OnCredit(int64_t bytes) {
  if (bytes > credit_used_) {
    return Breach("more credit returned than was used");
  }
  credit_used_ -= bytes;
  return absl::OkStatus();
}

absl::Status Sender::OnGrant(uint64_t message) {
  Send* send = Find(message);
  if (send == nullptr || send->state == State::kDead) {
    return absl::OkStatus();  // revoked meanwhile: a withdrawal is on its way
  }
  if (send->state != State::kAnnounced) {
    return Breach("a grant for a message that is not announced");
  }
  send->state = State::kGranted;
  send->queued = true;
  granted_.push_back(send);
  return absl::OkStatus();
}

absl::Status Sender::OnRefuse(uint64_t message) {
  Send* send = Find(message);
  if (send == nullptr || send->state == State::kDead) {
    return absl::OkStatus();
  }
  if (send->state != State::kAnnounced) {
    return Breach("a refusal of a message that is not announced");
  }
  Complete(send, absl::OkStatus());  // the buffer is free again; what became of the message is the
                                     // receiver's matter
  return absl::OkStatus();
}

void Sender::OnTaken(uint64_t message, int64_t bytes) {
  Send* send = Find(message);
  if (send == nullptr) {
    return;
  }
  send->taken += bytes;
  if (send->state == State::kPacked && send->taken == send->bytes) {
    Complete(send, absl::OkStatus());
  }
}

bool Sender::pending() const {
  return !urgent_.empty() || !waiting_.empty() || !granted_.empty() ||
         credit_to_return_ >= kCreditWorthAParcel;
}

void Sender::Give(Header header, ConstBytes payload, Send* send) {
  header.credit = static_cast<uint32_t>(std::min<int64_t>(credit_to_return_, kCredit));
  credit_to_return_ -= header.credit;
  const uint64_t message = send == nullptr ? ~uint64_t{0} : send->message;
  const bool taken = wire_->Send(header, payload, message);
  if (send == nullptr) {
    if (!taken) {
      wire_->Recall(message);
    }
  } else if (taken) {
    send->taken += static_cast<int64_t>(payload.size());
  }
}

int Sender::Flush() {
  int parcels = 0;
  int64_t bytes = 0;
  while (bytes < kBytesPerFlush && wire_->ready() && pending()) {
    bytes += SendNext();
    ++parcels;
  }
  return parcels;
}

int64_t Sender::SendNext() {
  constexpr auto kEach = static_cast<int64_t>(sizeof(Header));
  if (!urgent_.empty()) {
    const UrgentParcel parcel = std::move(urgent_.front());
    urgent_.pop_front();
    const auto* data = reinterpret_cast<const std::byte*>(parcel.payload.data());
    Give(parcel.header, {data, parcel.payload.size()}, nullptr);
    return kEach + parcel.header.bytes;
  }
  for (std::deque<Send*>* queue : {&waiting_, &granted_}) {
    while (!queue->empty()) {
      Send* send = queue->front();
      if (send->state == State::kDead) {
        queue->pop_front();
        Free(send);
        continue;
      }
      const int64_t bytes = queue == &granted_ ? SendData(send) : SendWaiting(send);
      if (!send->queued) {
        queue->pop_front();
        if (send->state == State::kPacked && send->taken == send->bytes) {
          Complete(send, absl::OkStatus());
        }
      }
      return kEach + bytes;
    }
  }
  if (credit_to_return_ >= kCreditWorthAParcel) {
    Give({.type = ParcelType::kCredit}, {}, nullptr);
  }
  return kEach;
}

int64_t Sender::SendWaiting(Send* send) {
  Header header;
  header.tag = send->envelope.tag.bits();
  header.descriptor = send->envelope.descriptor;
  header.bytes = send->bytes;
  send->queued = false;
  const int64_t cost = MatchQueue::CostOf(send->bytes);
  if (send->bytes > kParcelBytes || credit_used_ + cost > kCredit) {
    header.type = ParcelType::kAnnounce;
    header.message = send->message;
    send->state = State::kAnnounced;
    Give(header, {}, nullptr);
    return 0;
  }
  credit_used_ += cost;
  header.type = ParcelType::kEager;
  send->state = State::kPacked;
  send->given = send->bytes;
  Give(header, {send->data, static_cast<size_t>(send->bytes)}, send);
  return send->bytes;
}

int64_t Sender::SendData(Send* send) {
  Header header;
  header.type = ParcelType::kData;
  header.message = send->message;
  header.bytes = std::min(send->bytes - send->given, kParcelBytes);
  const ConstBytes payload(send->data + send->given, static_cast<size_t>(header.bytes));
  send->given += header.bytes;
  send->queued = send->given < send->bytes;
  if (!send->queued) {
    send->state = State::kPacked;
  }
  Give(header, payload, send);
  return header.bytes;
}

void Sender::TakeBack(Send* send, const absl::Status& why) {
  if (wire_ != nullptr) {
    wire_->Recall(send->message);
  }
  if (send->state == State::kAnnounced || send->state == State::kGranted) {
    Urgent(
        {.type = ParcelType::kWithdraw, .tag = send->envelope.tag.bits(), .message = send->message},
        {});
  }
  completions_->Add(send->done, why, 0);
  if (send->queued) {
    send->state = State::kDead;
  } else {
    Free(send);
  }
}

void Sender::Revoke(Context theirs, const absl::Status& why) {
  for (Send& send : sends_) {
    if (send.state != State::kFree && send.state != State::kDead &&
        send.envelope.tag.context() == theirs) {
      TakeBack(&send, why);
    }
  }
}

std::deque<std::string> Sender::FailAll(const absl::Status& why) {
  for (Send& send : sends_) {
    if (send.state != State::kFree && send.state != State::kDead) {
      TakeBack(&send, why);
    }
  }
  waiting_.clear();
  granted_.clear();
  wire_ = nullptr;
  std::deque<std::string> control;
  for (UrgentParcel& parcel : std::exchange(urgent_, {})) {
    if (parcel.header.type == ParcelType::kControl) {
      control.push_back(std::move(parcel.payload));
    }
  }
  return control;
}

}  // namespace entrain::ucx
