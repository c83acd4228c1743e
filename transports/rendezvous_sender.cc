#include "transports/rendezvous_sender.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain {

void RendezvousSender::Post(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (free_.empty()) {
    Outgoing& fresh = sends_.emplace_back();
    fresh.message = kPlaces + sends_.size() - 1;
    free_.push_back(&fresh);
  }
  Outgoing* send = free_.back();
  free_.pop_back();
  const uint64_t message = send->message;
  *send = Outgoing();
  send->envelope = envelope;
  send->data = bytes.data();
  send->bytes = static_cast<int64_t>(bytes.size());
  send->done = done;
  send->message = message;
  send->state = State::kWaiting;
  send->queued = true;
  waiting_.push_back(send);
}

void RendezvousSender::Free(Outgoing* send) {
  send->state = State::kFree;
  send->message += kPlaces;  // a new generation
  free_.push_back(send);
}

Outgoing* RendezvousSender::Next() {
  for (std::deque<Outgoing*>* queue : {&waiting_, &cleared_}) {
    while (!queue->empty()) {
      Outgoing* const send = queue->front();
      if (send->state != State::kDead) {
        return send;
      }
      queue->pop_front();
      Free(send);
    }
  }
  while (!ahead_.empty() && ahead_.front()->state == State::kDead) {
    Free(ahead_.front());
    ahead_.erase(ahead_.begin());
  }
  return !ahead_.empty() && MayGoAhead(*ahead_.front()) ? ahead_.front() : nullptr;
}

void RendezvousSender::Dequeue(Outgoing* send) {
  if (!ahead_.empty() && ahead_.front() == send) {
    ahead_.erase(ahead_.begin());
  } else {
    (!waiting_.empty() && waiting_.front() == send ? waiting_ : cleared_).pop_front();
  }
  send->queued = false;
}

void RendezvousSender::RtsSent(Outgoing* send) {
  ++rts_sent_;
  if (limit_ == kEarlyCredit) {
    send->state = State::kRtsSent;
    return;
  }
  send->state = State::kAhead;
  send->queued = true;
  ahead_.push_back(send);
}

Outgoing* RendezvousSender::Find(uint64_t message) {
  const uint64_t place = message % kPlaces;
  if (place >= sends_.size()) {
    return nullptr;
  }
  Outgoing* const send = &sends_[place];
  const bool over = send->state == State::kFree || send->state == State::kDead;
  return send->message == message && !over ? send : nullptr;
}

void RendezvousSender::Complete(Outgoing* send) {
  rts_sent_ -= send->state == State::kAhead ? 1 : 0;
  completions_->Add(send->done, absl::OkStatus(), send->bytes);
  Free(send);
}

void RendezvousSender::Taken(Outgoing* send, int64_t bytes) {
  send->taken += bytes;
  if (send->taken == send->bytes) {
    Complete(send);
  }
}

absl::Status RendezvousSender::OnCredit(int64_t bytes) {
  if (bytes > credit_used_) {
    return BreachOfProtocol("more credit returned than was used");
  }
  credit_used_ -= bytes;
  return absl::OkStatus();
}

absl::Status RendezvousSender::OnCts(uint64_t message) {
  Outgoing* const send = Find(message);
  if (send == nullptr) {
    return absl::OkStatus();  // the message was revoked meanwhile; a WITHDRAW is on its way to the
                              // peer
  }
  if (send->state != State::kRtsSent && send->state != State::kAhead) {
    return BreachOfProtocol("CTS for a message without RTS");
  }
  --rts_sent_;
  if (send->state == State::kAhead && !send->queued) {  // the transport has all its bytes
    send->state = State::kCleared;
    return absl::OkStatus();
  }
  if (send->queued) {
    ahead_.erase(std::find(ahead_.begin(), ahead_.end(), send));
  }
  send->state = State::kCleared;
  send->queued = true;
  cleared_.push_back(send);
  return absl::OkStatus();
}

absl::Status RendezvousSender::OnRefuse(uint64_t message) {
  Outgoing* const send = Find(message);
  if (send == nullptr) {
    return absl::OkStatus();
  }
  if (send->state == State::kRefused) {
    return absl::OkStatus();
  }
  // A peer that has lent credit waits for WITHDRAW, also for a message whose RTS this side sent
  // before LEND arrived.
  if (send->state == State::kAhead || (send->state == State::kRtsSent && limit_ > kEarlyCredit)) {
    if (std::exchange(send->queued, false)) {
      ahead_.erase(std::find(ahead_.begin(), ahead_.end(), send));
    }
    --rts_sent_;
    send->state = State::kRefused;
    refused_.push_back(send);
    return absl::OkStatus();
  }
  if (send->state != State::kRtsSent) {
    return BreachOfProtocol("a refusal of a message without RTS");
  }
  --rts_sent_;
  Complete(send);  // the buffer is free; the receive's completion reports what became of the
                   // message
  return absl::OkStatus();
}

Outgoing* RendezvousSender::TakeRefused() {
  if (refused_.empty()) {
    return nullptr;
  }
  Outgoing* const send = refused_.front();
  refused_.erase(refused_.begin());
  return send;
}

absl::Status RendezvousSender::OnLend(uint64_t bytes) {
  if (bytes == 0 || bytes > static_cast<uint64_t>(kEarlyCredit + kMostLent - limit_)) {
    return BreachOfProtocol(absl::StrCat(bytes, " bytes of credit lent, after ", limit_));
  }
  limit_ += static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

bool RendezvousSender::TakeCredit(int64_t bytes) {
  if (!HasCredit(bytes)) {
    return false;
  }
  credit_used_ += MatchQueue::CostOf(bytes);
  return true;
}

uint32_t RendezvousSender::SayCredit() {
  const int64_t said = std::min<int64_t>(credit_to_return_, std::numeric_limits<uint32_t>::max());
  credit_to_return_ -= said;
  return static_cast<uint32_t>(said);
}

void RendezvousSender::Fail(Outgoing* send, const absl::Status& why) {
  rts_sent_ -= send->state == State::kRtsSent || send->state == State::kAhead ? 1 : 0;
  if (send->state == State::kRefused) {
    refused_.erase(std::find(refused_.begin(), refused_.end(), send));
  }
  completions_->Add(send->done, why, 0);
  if (send->queued) {
    send->state = State::kDead;
  } else {
    Free(send);
  }
}

void RendezvousSender::Clear() {
  waiting_.clear();
  cleared_.clear();
  ahead_.clear();
  refused_.clear();
}

}  // namespace entrain
