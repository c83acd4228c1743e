#include "transports/ucx/sender.h"

#include <algorithm>
#include <utility>

namespace entrain::ucx {
namespace {

constexpr int64_t kBytesPerFlush = 1 << 20;  // keeps one turn of the loop short

}  // namespace

void Sender::Urgent(const PacketHeader& header, absl::string_view payload) {
  urgent_.push_back({header, std::string(payload)});
  urgent_.back().header.bytes = static_cast<int64_t>(payload.size());
}

void Sender::OnTaken(uint64_t message, int64_t bytes) {
  if (Outgoing* const send = outgoing_.Find(message)) {
    send->taken += bytes;
    CompleteIfTaken(send);
  }
}

void Sender::CompleteIfTaken(Outgoing* send) {
  if (send->state == Outgoing::State::kGivenAway && send->taken == send->bytes) {
    outgoing_.Complete(send);
  }
}

bool Sender::pending() const {
  return !urgent_.empty() || !outgoing_.empty() || outgoing_.credit_is_due();
}

void Sender::Give(PacketHeader header, ConstBytes payload, Outgoing* send) {
  header.credit = outgoing_.SayCredit();
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
  int packets = 0;
  int64_t bytes = 0;
  while (bytes < kBytesPerFlush && wire_->ready() && pending()) {
    bytes += SendNext();
    ++packets;
  }
  return packets;
}

int64_t Sender::SendNext() {
  constexpr auto kEach = static_cast<int64_t>(sizeof(Header));
  if (!urgent_.empty()) {
    const UrgentPacket packet = std::move(urgent_.front());
    urgent_.pop_front();
    const auto* data = reinterpret_cast<const std::byte*>(packet.payload.data());
    Give(packet.header, {data, packet.payload.size()}, nullptr);
    return kEach + packet.header.bytes;
  }
  if (Outgoing* const send = outgoing_.Next()) {
    const bool cleared = send->state == Outgoing::State::kCleared;
    const int64_t bytes = cleared ? SendData(send) : SendWaiting(send);
    CompleteIfTaken(send);
    return kEach + bytes;
  }
  if (outgoing_.credit_is_due()) {
    Give({.type = PacketType::kCredit}, {}, nullptr);
  }
  return kEach;
}

int64_t Sender::SendWaiting(Outgoing* send) {
  PacketHeader header;
  header.tag = send->envelope.tag.bits();
  header.descriptor = send->envelope.descriptor;
  header.bytes = send->bytes;
  outgoing_.Dequeue(send);
  if (send->bytes > kMostPayload || !outgoing_.TakeCredit(send->bytes)) {
    header.type = PacketType::kRts;
    header.message = send->message;
    outgoing_.RtsSent(send);
    Give(header, {}, nullptr);
    return 0;
  }
  header.type = PacketType::kEager;
  send->state = Outgoing::State::kGivenAway;
  send->given = send->bytes;
  Give(header, {send->data, static_cast<size_t>(send->bytes)}, send);
  return send->bytes;
}

int64_t Sender::SendData(Outgoing* send) {
  PacketHeader header;
  header.type = PacketType::kData;
  header.message = send->message;
  header.bytes = std::min(send->bytes - send->given, kMostPayload);
  const ConstBytes payload(send->data + send->given, static_cast<size_t>(header.bytes));
  send->given += header.bytes;
  if (send->given == send->bytes) {
    outgoing_.Dequeue(send);
    send->state = Outgoing::State::kGivenAway;
  }
  Give(header, payload, send);
  return header.bytes;
}

void Sender::TakeBack(Outgoing* send, const absl::Status& why) {
  if (wire_ != nullptr) {
    wire_->Recall(send->message);
  }
  if (send->known()) {
    Urgent(
        {.type = PacketType::kWithdraw, .tag = send->envelope.tag.bits(), .message = send->message},
        {});
  }
  outgoing_.Fail(send, why);
}

void Sender::Revoke(Context theirs, const absl::Status& why) {
  outgoing_.ForEach([&](Outgoing* send) {
    if (send->envelope.tag.context() == theirs) {
      TakeBack(send, why);
    }
  });
}

std::deque<std::string> Sender::FailAll(const absl::Status& why) {
  outgoing_.ForEach([&](Outgoing* send) { TakeBack(send, why); });
  outgoing_.Clear();
  wire_ = nullptr;
  std::deque<std::string> control;
  for (UrgentPacket& packet : std::exchange(urgent_, {})) {
    if (packet.header.type == PacketType::kControl) {
      control.push_back(std::move(packet.payload));
    }
  }
  return control;
}

}  // namespace entrain::ucx
