#include "transports/inproc/inproc_endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sched.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

uint64_t HandleOf(LentMessage* lent) {
  return reinterpret_cast<uint64_t>(lent);
}
LentMessage* LentOf(uint64_t handle) {
  return reinterpret_cast<LentMessage*>(handle);
}

// Revokes a message. Afterwards the receiver does not read lent->data. Waits at most while the
// receiver copies one piece.
void TakeBack(LentMessage* lent) {
  uint32_t state = LentMessage::kIdle;
  // acquire: pairs with the receiver's release store of kIdle. So the receiver's reads are over.
  while (
      !lent->state.compare_exchange_weak(state, LentMessage::kRevoked, std::memory_order_acquire)) {
    if (state == LentMessage::kRevoked) {
      return;
    }
    if (state == LentMessage::kCopying) {
      sched_yield();
    }
    state = LentMessage::kIdle;
  }
}

}  // namespace

InprocEndpoint::InprocEndpoint(InprocShared* shared, uint32_t slot, std::string address,
                               Deadline connect_by)
    : shared_(shared),
      slot_(slot),
      address_(std::move(address)),
      connect_by_(connect_by),
      queue_(this, shared->events, &shared->completions, kCredit) {}

InprocEndpoint::~InprocEndpoint() {
  Close(absl::AbortedError("endpoint destroyed"));
  shared_->endpoints[slot_] = nullptr;
}

void InprocEndpoint::Join(Hub::Joined joined) {
  if (joined.link == nullptr) {
    Lose(absl::UnavailableError(
        absl::StrCat("there is no rank ", address_, " in this process any more")));
    return;
  }
  link_ = std::move(joined.link);
  side_ = joined.side;
  connected_ = joined.complete;
  if (!joined.closed.empty()) {
    Lose(AsPeerEnded(absl::UnavailableError(absl::StrCat("closed by the peer: ", joined.closed))));
  } else if (connected_) {
    Send({.kind = Note::Kind::kHello}, {});
  }
}

Deadline InprocEndpoint::wake_at() const {
  return connected_ || ended() ? Deadline::Never() : connect_by_;
}

void InprocEndpoint::Send(Note note, ConstBytes payload) {
  if (!connected_) {
    backlog_.Add(note, payload);
    return;
  }
  note.slot = theirs().slot;
  theirs().inbox->Push(note, payload);
}

void InprocEndpoint::PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (ended()) {
    shared_->completions.Add(done, end_, 0);
    return;
  }
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t cost = MatchQueue::CostOf(size);
  // relaxed: `consumed` is only a count. If the value is outdated, the message is perhaps sent by
  // RTS although there is credit.
  if (size > kEagerBytes ||
      sent_ + cost - mine().consumed.load(std::memory_order_relaxed) > kCredit) {
    SendRts(envelope, bytes, done);
    return;
  }
  sent_ += cost;
  Send({.kind = Note::Kind::kEager, .envelope = envelope}, bytes);
  shared_->completions.Add(done, absl::OkStatus(), size);
}

void InprocEndpoint::SendRts(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  InprocPair::Side& side = mine();
  if (side.free.empty()) {
    side.free.push_back(&side.lent.emplace_back());
  }
  LentMessage* lent = side.free.back();
  side.free.pop_back();
  lent->data = bytes.data();
  lent->bytes = static_cast<int64_t>(bytes.size());
  lent->tag = envelope.tag;
  lent->done = done;
  lent->at = open_.size();
  lent->open = true;
  // relaxed: the inbox's mutex publishes this store to the receiver.
  lent->state.store(LentMessage::kIdle, std::memory_order_relaxed);
  open_.push_back(lent);
  Send({.kind = Note::Kind::kRts, .envelope = envelope, .lent = lent}, {});
}

void InprocEndpoint::Finish(LentMessage* lent, const absl::Status& status) {
  if (lent->open) {
    lent->open = false;
    shared_->completions.Add(lent->done, status, status.ok() ? lent->bytes : 0);
    open_.back()->at = lent->at;
    open_[lent->at] = open_.back();
    open_.pop_back();
  }
}

void InprocEndpoint::Revoke(LentMessage* lent, const absl::Status& why) {
  TakeBack(lent);
  Finish(lent, why);
}

void InprocEndpoint::PostRecv(const Envelope& envelope, Bytes bytes, Completion* done,
                              RecvHint hint) {
  // Also called after the end, because messages that the peer sent before the end are kept.
  if (Incoming* incoming = queue_.Post(envelope, bytes, done, hint)) {
    copying_.push_back(incoming);
  }
  if (!ended()) {
    ReturnCredit();
  }
}

void InprocEndpoint::SendControl(absl::string_view message) {
  if (!ended()) {
    Send({.kind = Note::Kind::kControl}, AsBytes(message));
  }
}

void InprocEndpoint::Revoke(Context mine_context, Context theirs_context, const absl::Status& why) {
  if (ended()) {
    return;
  }
  // Goes backwards, because Finish replaces the element that it removes by the last element.
  for (size_t i = open_.size(); i-- > 0;) {
    LentMessage* lent = open_[i];
    if (lent->tag.context() == theirs_context) {
      Revoke(lent, why);
      Send({.kind = Note::Kind::kWithdraw, .envelope = {lent->tag, {}}, .lent = lent}, {});
    }
  }
  refused_.clear();
  queue_.Revoke(mine_context, why, &refused_);
  for (uint64_t handle : refused_) {
    Send({.kind = Note::Kind::kFinished, .lent = LentOf(handle)}, {});
  }
  ReturnCredit();
}

void InprocEndpoint::End(const absl::Status& why) {
  end_ = why;
  while (!open_.empty()) {
    Revoke(open_.back(), why);
  }
  copying_.clear();
  queue_.FailAll(why);
  backlog_ = NoteBatch();
}

void InprocEndpoint::Close(const absl::Status& why) {
  const absl::Status reason = why.ok() ? absl::AbortedError("closed") : why;
  failed_ = absl::OkStatus();  // no OnLost after Close
  if (ended()) {
    return;
  }
  End(reason);
  if (link_ != nullptr &&
      (connected_ || !Hub::OfThisProcess().Abandon(link_.get(), reason.message()))) {
    connected_ = true;
    Send({.kind = Note::Kind::kClosed}, AsBytes(reason.message()));
  }
}

void InprocEndpoint::Lose(const absl::Status& why) {
  if (!ended()) {
    End(why);
    failed_ = why;
  }
}

void InprocEndpoint::OnNote(const Note& note, ConstBytes payload) {
  if (ended()) {
    return;
  }
  switch (note.kind) {
    case Note::Kind::kHello: {
      connected_ = true;
      const std::byte* data = backlog_.payloads.data();
      for (const Note& kept : backlog_.notes) {
        Send(kept, {data, kept.payload_bytes});
        data += kept.payload_bytes;
      }
      backlog_ = NoteBatch();
      return;
    }
    case Note::Kind::kEager:
      if (absl::Status status = queue_.Deliver(note.envelope, payload); !status.ok()) {
        Lose(status);
      } else if (!ended()) {
        ReturnCredit();
      }
      return;
    case Note::Kind::kRts:
      OnRts(note);
      return;
    case Note::Kind::kFinished:
      Finish(note.lent, absl::OkStatus());
      mine().free.push_back(note.lent);
      return;
    case Note::Kind::kWithdraw:
      OnWithdraw(note);
      return;
    case Note::Kind::kControl:
      shared_->events->OnControl(*this, AsText(payload));
      return;
    case Note::Kind::kClosed:
      Lose(AsPeerEnded(
          absl::UnavailableError(absl::StrCat("closed by the peer: ", AsText(payload)))));
      return;
  }
}

void InprocEndpoint::OnRts(const Note& note) {
  absl::StatusOr<Incoming*> incoming =
      queue_.OnRts(note.envelope, note.lent->bytes, HandleOf(note.lent));
  if (!incoming.ok()) {
    Lose(incoming.status());
  } else if (*incoming != nullptr && !ended()) {
    copying_.push_back(*incoming);
  }
}

void InprocEndpoint::OnWithdraw(const Note& note) {
  const absl::Status why = absl::AbortedError("the sender revoked its communicator");
  const auto copying = std::find_if(copying_.begin(), copying_.end(), [&](Incoming* incoming) {
    return incoming->handle() == HandleOf(note.lent);
  });
  if (copying != copying_.end()) {
    queue_.Fail(*copying, why);
    copying_.erase(copying);
  } else if (!queue_.Withdraw(note.envelope.tag, HandleOf(note.lent), why)) {
    return;  // the message was finished before, and the sender has been told
  }
  Send({.kind = Note::Kind::kFinished, .lent = note.lent}, {});
}

int InprocEndpoint::Progress() {
  if (!failed_.ok()) {
    const absl::Status why = std::exchange(failed_, absl::OkStatus());
    shared_->events->OnLost(*this, why);
    return 1;
  }
  if (!connected_ && !ended() && connect_by_.Passed(shared_->clock->Now())) {
    Lose(absl::UnavailableError(
        absl::StrCat("rank ", address_, " of this process did not connect in time")));
    return 1;
  }
  return copying_.empty() ? 0 : CopyPieces();
}

// Copies pieces of the messages in copying_, one message after another, in the order in which they
// were claimed. Refuses dropped messages.
int InprocEndpoint::CopyPieces() {
  int64_t budget = kBytesPerPoll;
  int events = 0;
  while (budget > 0 && !copying_.empty()) {
    Incoming* incoming = copying_.front();
    LentMessage* lent = LentOf(incoming->handle());
    bool finished = incoming->dropped();
    if (finished) {
      queue_.Abandon(incoming);
    } else {
      uint32_t idle = LentMessage::kIdle;
      // acquire: the reads below happen after this exchange. (The inbox's mutex has published the
      // data.)
      if (!lent->state.compare_exchange_strong(idle, LentMessage::kCopying,
                                               std::memory_order_acquire)) {
        return events;  // the sender has revoked the message, and its kWithdraw note is on its way
      }
      const Bytes into = incoming->writable();
      const size_t piece = std::min<size_t>(into.size(), kPieceBytes);
      if (piece > 0) {
        std::memcpy(into.data(), lent->data + incoming->received(), piece);
      }
      lent->state.store(LentMessage::kIdle, std::memory_order_release);  // pairs with TakeBack
      budget -= static_cast<int64_t>(piece) + 1;
      finished = queue_.Advance(incoming, static_cast<int64_t>(piece));
    }
    ++events;
    if (finished) {
      copying_.erase(copying_.begin());
      Send({.kind = Note::Kind::kFinished, .lent = lent}, {});
    }
  }
  return events;
}

void InprocEndpoint::ReturnCredit() {
  if (const int64_t released = queue_.TakeReleased(); released > 0) {
    theirs().consumed.fetch_add(released, std::memory_order_relaxed);  // see its declaration
  }
}

}  // namespace entrain
