#include "transports/matching.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

// The most storage that a free Incoming keeps for its next message. So small messages allocate
// nothing.
constexpr int64_t kKeptCapacity = 4096;
// The size of the blocks that are kept for later large messages. For new memory of this size, the
// kernel must zero pages. That costs more than the copy of the message.
constexpr int64_t kSpareBytes = 256 << 10;
constexpr size_t kSpares = 4;

void Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) {  // an empty span may have null pointers
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

int CompletionList::Run() {
  int ran = 0;
  while (!due_.empty()) {
    running_.swap(due_);
    for (Due& due : running_) {
      if (due.done != nullptr) {
        due.done->done(due.done, due.status, due.bytes);
      }
      ++ran;
    }
    running_.clear();
  }
  return ran;
}

absl::Status MismatchError(const Envelope& receive, int64_t receive_bytes, const Envelope& message,
                           int64_t message_bytes) {
  return absl::DataLossError(
      absl::StrCat("the ranks called different things: here ", ToString(receive.descriptor),
                   " (expecting ", receive_bytes, " bytes), the peer ",
                   ToString(message.descriptor), " (sending ", message_bytes, " bytes)"));
}

MatchQueue::MatchQueue(Endpoint* endpoint, Events* events, CompletionList* completions,
                       int64_t early_limit)
    : endpoint_(endpoint), events_(events), completions_(completions), early_limit_(early_limit) {}

MatchQueue::~MatchQueue() = default;

Incoming* MatchQueue::NewIncoming(const Envelope& envelope, int64_t bytes) {
  Incoming* incoming = incoming_pool_.Take();
  incoming->envelope_ = envelope;
  incoming->bytes_ = bytes;
  return incoming;
}

void MatchQueue::Recycle(Incoming* incoming) {
  Release(incoming);
  std::unique_ptr<std::byte[]> storage = std::move(incoming->storage_);
  const int64_t capacity = incoming->capacity_;
  *incoming = Incoming();
  if (capacity <= kKeptCapacity) {
    incoming->storage_ = std::move(storage);
    incoming->capacity_ = capacity;
  } else if (capacity == kSpareBytes && spares_.size() < kSpares) {
    spares_.push_back(std::move(storage));
  }
  incoming_pool_.Give(incoming);
}

void MatchQueue::Release(Incoming* incoming) {
  released_ += incoming->cost_;
  if (incoming->counted_) {
    early_bytes_ -= incoming->cost_;
  }
  incoming->cost_ = 0;
  incoming->counted_ = false;
}

void MatchQueue::ReleaseDropped(Incoming* incoming) {
  Release(incoming);
  incoming->storage_ = nullptr;
  incoming->capacity_ = 0;
  incoming->target_ = nullptr;
}

int64_t MatchQueue::TakeReleased() {
  return std::exchange(released_, 0);
}

void MatchQueue::Hold(Incoming* incoming) {
  incoming->held_ = true;
  incoming->held_at_ = held_.size();
  held_.push_back(incoming);
}

void MatchQueue::EndHold(Incoming* incoming) {
  held_.back()->held_at_ = incoming->held_at_;
  held_[incoming->held_at_] = held_.back();
  held_.pop_back();
  incoming->held_ = false;
  if (!incoming->in_line_) {
    Recycle(incoming);
  }
}

absl::Status MatchQueue::Reserve(int64_t bytes) {
  if (CostOf(bytes) > early_limit_ - early_bytes_) {
    return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", bytes,
                                               " more bytes come early, ", early_bytes_, " of ",
                                               early_limit_, " are kept already"));
  }
  return absl::OkStatus();
}

void MatchQueue::Keep(Incoming* incoming) {
  if (incoming->by_rts_) {
    ++kept_rts_;
  } else {
    early_bytes_ += incoming->cost_;
    incoming->counted_ = true;
    if (incoming->capacity_ < incoming->bytes_) {
      GiveStorage(incoming);
    }
    incoming->target_ = incoming->storage_.get();
  }
  incoming->in_line_ = true;
  Line* line = lines_.FindOrAdd(incoming->envelope_.tag);
  (line->last_early == nullptr ? line->first_early : line->last_early->next_) = incoming;
  line->last_early = incoming;
}

void MatchQueue::GiveStorage(Incoming* incoming) {
  // A message of more than half of kSpareBytes gets a block of kSpareBytes, so that all kept blocks
  // have the same size.
  const bool large = incoming->bytes_ > kSpareBytes / 2 && incoming->bytes_ <= kSpareBytes;
  if (large && !spares_.empty()) {
    incoming->storage_ = std::move(spares_.back());
    incoming->capacity_ = kSpareBytes;
    spares_.pop_back();
    return;
  }
  incoming->capacity_ = large ? kSpareBytes : std::max<int64_t>(incoming->bytes_, 256);
  incoming->storage_ =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(incoming->capacity_));
}

void MatchQueue::GrowStorage(Incoming* incoming, int64_t bytes) {
  if (incoming->capacity_ >= bytes) {
    return;
  }
  const int64_t capacity = std::min(incoming->bytes_, std::max(bytes, 2 * incoming->capacity_));
  auto larger = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(capacity));
  Copy(larger.get(), incoming->storage_.get(), static_cast<size_t>(incoming->begun_));
  incoming->storage_ = std::move(larger);
  incoming->capacity_ = capacity;
  incoming->target_ = incoming->storage_.get();
}

absl::Status MatchQueue::Ahead(Incoming* incoming, int64_t bytes) {
  if (!incoming->unclaimed()) {
    released_ += CostOf(bytes);
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(Reserve(bytes));
  incoming->counted_ = true;
  incoming->cost_ += CostOf(bytes);
  early_bytes_ += CostOf(bytes);
  GrowStorage(incoming, incoming->begun_ + bytes);
  incoming->target_ = incoming->storage_.get();
  return absl::OkStatus();
}

MatchQueue::Match MatchQueue::TakePosted(const Envelope& envelope, int64_t bytes, Posted* taken) {
  Line* line = lines_.Find(envelope.tag);
  if (line == nullptr || line->first_posted == nullptr) {
    return Match::kNone;
  }
  Posted* posted = line->first_posted;
  line->first_posted = posted->next;
  if (line->first_posted == nullptr) {
    line->last_posted = nullptr;
  }
  lines_.RemoveIfEmpty(line);
  --posted_;
  *taken = *posted;
  posted_pool_.Give(posted);
  const auto expected = static_cast<int64_t>(taken->into.size());
  if (taken->envelope.descriptor != envelope.descriptor || expected != bytes) {
    completions_->Add(taken->done, MismatchError(taken->envelope, expected, envelope, bytes), 0);
    return Match::kMismatch;
  }
  return Match::kTaken;
}

Incoming* MatchQueue::Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
  if (hint.loan != nullptr) {
    *hint.loan = Loan();
  }
  if (!end_.ok()) {
    const Line* kept = lines_.Find(envelope.tag);
    if (kept == nullptr || kept->first_early == nullptr) {
      completions_->Add(done, end_, 0);
      return nullptr;
    }
  }
  Line* line = lines_.FindOrAdd(envelope.tag);
  Incoming* incoming = line->first_early;
  if (incoming == nullptr) {
    Posted* posted = posted_pool_.Take();
    *posted = {envelope, into, done, hint, nullptr};
    (line->last_posted == nullptr ? line->first_posted : line->last_posted->next) = posted;
    line->last_posted = posted;
    ++posted_;
    return nullptr;
  }
  Unline(line);
  if (incoming->by_rts_) {
    --kept_rts_;
    if (!incoming->held_) {
      Hold(incoming);
    }
  }
  const auto expected = static_cast<int64_t>(into.size());
  if (envelope.descriptor != incoming->envelope_.descriptor || expected != incoming->bytes_) {
    completions_->Add(done,
                      MismatchError(envelope, expected, incoming->envelope_, incoming->bytes_), 0);
    incoming->dropped_ = true;
    ReleaseDropped(incoming);
  } else {
    Claim(incoming, {envelope, into, done, hint, nullptr});
  }
  if (!incoming->withdrawn_.ok()) {
    Fail(incoming, incoming->withdrawn_);
    return nullptr;
  }
  if (incoming->by_rts_) {
    return incoming;
  }
  if (!incoming->held_) {
    Recycle(incoming);
  }
  return nullptr;
}

MatchQueue::Kept MatchQueue::TakeKept(const Envelope& envelope, Bytes into) {
  Line* line = lines_.empty() ? nullptr : lines_.Find(envelope.tag);
  if (line == nullptr) {
    return Kept::kNothing;
  }
  const Incoming* first = line->first_early;
  const auto bytes = static_cast<int64_t>(into.size());
  if (first == nullptr || first->by_rts_ || first->held_ || first->received_ != bytes ||
      first->bytes_ != bytes || first->envelope_.descriptor != envelope.descriptor) {
    return Kept::kOther;
  }
  Copy(into.data(), first->target_, into.size());
  Recycle(Unline(line));
  return Kept::kWhole;
}

Incoming* MatchQueue::Unline(Line* line) {
  Incoming* incoming = line->first_early;
  line->first_early = incoming->next_;
  if (line->first_early == nullptr) {
    line->last_early = nullptr;
  }
  lines_.RemoveIfEmpty(line);
  incoming->in_line_ = false;
  incoming->next_ = nullptr;
  return incoming;
}

// Gives an early message to its receive. Copies the bytes that have arrived. The rest of the
// message will go straight into the receive's buffer.
void MatchQueue::Claim(Incoming* incoming, const Posted& receive) {
  // If the message comes in parts, any byte of the parts that have begun may have arrived.
  const int64_t there = std::max(incoming->begun_, incoming->received_);
  Copy(receive.into.data(), incoming->target_, static_cast<size_t>(there));
  incoming->target_ = receive.into.data();
  if (!incoming->by_rts_ && !incoming->held_) {
    completions_->Add(receive.done, absl::OkStatus(), incoming->bytes_);
    return;
  }
  if (incoming->by_rts_ && incoming->counted_) {  // data that went ahead has left early memory
    Release(incoming);
    incoming->storage_ = nullptr;
    incoming->capacity_ = 0;
  }
  incoming->claimed_ = true;
  incoming->done_ = receive.done;
  incoming->hint_ = receive.hint;
}

absl::Status MatchQueue::Deliver(const Envelope& envelope, ConstBytes payload) {
  const auto bytes = static_cast<int64_t>(payload.size());
  Posted taken;
  const Match match = TakePosted(envelope, bytes, &taken);
  if (match == Match::kTaken) {
    Copy(taken.into.data(), payload.data(), payload.size());
    completions_->Add(taken.done, absl::OkStatus(), bytes);
  }
  if (match != Match::kNone || !events_->Accepts(envelope.tag.context())) {
    released_ += CostOf(bytes);
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(Reserve(bytes));
  Incoming* incoming = NewIncoming(envelope, bytes);
  incoming->cost_ = CostOf(bytes);
  Keep(incoming);
  Copy(incoming->target_, payload.data(), payload.size());
  incoming->received_ = bytes;
  events_->OnEarly(*endpoint_, envelope);
  return absl::OkStatus();
}

absl::StatusOr<Incoming*> MatchQueue::Begin(const Envelope& envelope, int64_t bytes) {
  Posted taken;
  const Match match = TakePosted(envelope, bytes, &taken);
  const bool early = match == Match::kNone && events_->Accepts(envelope.tag.context());
  if (early) {
    ENTRAIN_RETURN_IF_ERROR(Reserve(bytes));
  }
  Incoming* incoming = NewIncoming(envelope, bytes);
  incoming->cost_ = CostOf(bytes);
  Hold(incoming);
  if (match == Match::kTaken) {
    Claim(incoming, taken);
  } else if (early) {
    Keep(incoming);
    events_->OnEarly(*endpoint_, envelope);
  } else {
    incoming->dropped_ = true;
  }
  return incoming;
}

absl::StatusOr<Incoming*> MatchQueue::OnRts(const Envelope& envelope, int64_t bytes,
                                            uint64_t handle, bool ahead) {
  Posted taken;
  const Match match = TakePosted(envelope, bytes, &taken);
  const bool early = match == Match::kNone && events_->Accepts(envelope.tag.context());
  if (early && kept_rts_ >= kMaxRts) {
    return absl::UnavailableError(
        absl::StrCat("the peer sent more RTS than ", kMaxRts, " messages that nobody receives"));
  }
  Incoming* incoming = NewIncoming(envelope, bytes);
  incoming->by_rts_ = true;
  incoming->handle_ = handle;
  if (early) {
    Keep(incoming);
    if (ahead) {
      Hold(incoming);
    }
    events_->OnEarly(*endpoint_, envelope);
    return ahead ? incoming : nullptr;
  }
  Hold(incoming);
  if (match == Match::kTaken) {
    Claim(incoming, taken);
  } else {
    incoming->dropped_ = true;
  }
  return incoming;
}

bool MatchQueue::Advance(Incoming* incoming, int64_t bytes) {
  incoming->received_ += bytes;
  if (incoming->received_ < incoming->bytes_) {
    return false;
  }
  if (incoming->claimed_) {
    completions_->Add(incoming->done_, absl::OkStatus(), incoming->bytes_);
    incoming->claimed_ = false;
  } else if (incoming->unclaimed()) {  // from now on it is like an eager message
    incoming->by_rts_ = false;
    --kept_rts_;
  }
  EndHold(incoming);
  return true;
}

void MatchQueue::Fail(Incoming* incoming, const absl::Status& why) {
  const absl::Status reason = why;  // `why` may live in `incoming`
  DropHeld(incoming, reason);
  EndHold(incoming);
}

void MatchQueue::Abandon(Incoming* incoming) {
  EndHold(incoming);
}

void MatchQueue::DropHeld(Incoming* incoming, const absl::Status& why) {
  if (incoming->claimed_) {
    completions_->Add(incoming->done_, why, 0);
    incoming->claimed_ = false;
  }
  incoming->dropped_ = true;
}

bool MatchQueue::Withdraw(Tag tag, uint64_t handle, const absl::Status& why) {
  Line* line = lines_.Find(tag);
  for (Incoming* early = line == nullptr ? nullptr : line->first_early; early != nullptr;
       early = early->next_) {
    if (early->by_rts_ && early->handle_ == handle) {
      early->withdrawn_ = why;
      return true;
    }
  }
  return false;
}

void MatchQueue::Withdraw(Incoming* incoming, const absl::Status& why) {
  incoming->withdrawn_ = why;
  EndHold(incoming);
}

void MatchQueue::FailPosted(Line* line, const absl::Status& why) {
  while (Posted* posted = line->first_posted) {
    line->first_posted = posted->next;
    completions_->Add(posted->done, why, 0);
    posted_pool_.Give(posted);
    --posted_;
  }
  line->last_posted = nullptr;
}

void MatchQueue::ForgetEarly(Line* line, std::vector<uint64_t>* refused) {
  while (Incoming* incoming = line->first_early) {
    line->first_early = incoming->next_;
    incoming->in_line_ = false;
    incoming->dropped_ = true;
    if (incoming->by_rts_) {
      --kept_rts_;
      ReleaseDropped(incoming);
      if (refused != nullptr && incoming->withdrawn_.ok()) {
        refused->push_back(incoming->handle_);
      }
    }
    if (!incoming->held_) {
      Recycle(incoming);
    }
  }
  line->last_early = nullptr;
}

void MatchQueue::Revoke(Context mine, const absl::Status& why, std::vector<uint64_t>* refused) {
  lines_.ForEach([&](Line* line) {
    if (line->tag.context() == mine) {
      FailPosted(line, why);
      ForgetEarly(line, refused);
      lines_.RemoveIfEmpty(line);
    }
  });
  for (Incoming* incoming : held_) {
    if (incoming->envelope_.tag.context() == mine) {
      DropHeld(incoming, why);
    }
  }
}

// Removes incomplete messages from `line`, because their last bytes cannot arrive any more.
// Complete messages stay.
void MatchQueue::ForgetUnfinished(Line* line) {
  Incoming* early = line->first_early;
  line->first_early = line->last_early = nullptr;
  while (early != nullptr) {
    Incoming* incoming = early;
    early = incoming->next_;
    incoming->next_ = nullptr;
    if (!incoming->by_rts_ && !incoming->held_) {
      (line->last_early == nullptr ? line->first_early : line->last_early->next_) = incoming;
      line->last_early = incoming;
      continue;
    }
    incoming->in_line_ = false;
    incoming->dropped_ = true;
    kept_rts_ -= incoming->by_rts_ ? 1 : 0;
    if (!incoming->held_) {
      Recycle(incoming);
    }
  }
}

void MatchQueue::FailAll(const absl::Status& why) {
  if (end_.ok()) {
    end_ = why;
  }
  lines_.ForEach([&](Line* line) {
    FailPosted(line, why);
    ForgetUnfinished(line);
    lines_.RemoveIfEmpty(line);
  });
  while (!held_.empty()) {
    Fail(held_.back(), why);
  }
}

}  // namespace entrain
