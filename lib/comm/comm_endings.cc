// How a communicator ends, and who is to blame: CommCore's part of it.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/comm/comm_core.h"

namespace entrain {

// ---- [driver] Endings

void CommCore::Fail(const absl::Status& why) {
  const std::shared_ptr<CommCore> keep = shared_from_this();
  end_.Set(why);
  if (!engine_.Accepts(config_.context)) {
    return;  // ended before
  }
  const absl::Status first =
      words_.WithEarlierCause(words_.WithMember(status()), engine_.causes().cause());
  end_.Complete(first);
  inquiry_.Stop(first);
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, peers_.context(r), first);
    if (!inquiry_.left(r)) {
      peers_.SendTwice(r, ControlKind::kAbort, EncodeStatus(first));
    }
  }
  // Also those that share another communicator with this process, which may end of this.
  engine_.causes().Tell(
      absl::StartsWith(first.message(), config_.name) ? first : Annotate(first, config_.name));
  engine_.CloseContext(config_.context);
  engine_.seat().NeedFlush();
  if (!open_.empty()) {
    ENTRAIN_LOG(kInfo, first.message());
  }
  while (!open_.empty()) {
    CallWork* const work = open_.works().back();
    work->executor().Stop(first);
    FinishWork(work, words_.ForCall(first, *work));
  }
  mismatches_.Stop();
}

void CommCore::Leave() {
  if (!engine_.Accepts(config_.context)) {
    return;
  }
  if (!open_.empty()) {
    Fail(WithBlame(absl::AbortedError(absl::StrCat(
                       config_.name, ": rank ", config_.rank, " destroyed the communicator with ",
                       open_.size(), " unfinished calls, first ", open_.first()->Name())),
                   words_.BlameFor(nullptr, config_.rank, Phase::kTransfer)));
    return;
  }
  const absl::Status why =
      absl::AbortedError(absl::StrCat(config_.name, ": the communicator was destroyed"));
  end_.Set(why);
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr) {
      peers_.Send(r, ControlKind::kLeave);
      endpoint->Revoke(config_.context, peers_.context(r), why);
    }
  }
  engine_.CloseContext(config_.context);
}

void CommCore::OnShutdown() {
  if (!open_.empty()) {
    Fail(WithBlame(absl::AbortedError(absl::StrCat(
                       config_.name, ": rank ", config_.rank, " destroyed its runtime with ",
                       open_.size(), " unfinished calls, first ", open_.first()->Name())),
                   words_.BlameFor(nullptr, config_.rank, Phase::kTransfer)));
  } else {
    Leave();
  }
}

void CommCore::OnLost(Endpoint& from, const absl::Status& why) {
  const int rank = peers_.RankOf(&from);
  if (rank < 0) {
    return;
  }
  mismatches_.OnGone(rank);
  if (inquiry_.left(rank)) {
    NeedAttention();  // of receives from any peer; what else waits for it fails by its completions
    return;
  }
  inquiry_.OnLost(rank, why);
}

absl::Status CommCore::CauseOf(int rank) const {
  return engine_.causes().Of(peers_.endpoint(rank), opened_ns_);
}

void CommCore::OnControl(Endpoint& from, absl::string_view message) {
  const int rank = peers_.RankOf(&from);
  Reader reader(message);
  const auto kind = reader.Get<ControlKind>();
  if (rank < 0 || !reader.ok()) {
    return;
  }
  switch (kind) {
    case ControlKind::kAbort: {
      const std::optional<absl::Status> why = DecodeStatus(message.substr(1));
      // Passed on: whoever told us may be gone before it has told everybody.
      Fail(why && !why->ok() ? *why
                             : absl::AbortedError(absl::StrCat(config_.name, ": ",
                                                               peers_.NameOf(rank), " ended it")));
      return;
    }
    case ControlKind::kLeave:
      inquiry_.OnLeft(rank);
      mismatches_.OnGone(rank);
      return;
    case ControlKind::kQuery:
      OnQuery(from, rank, reader);
      return;
    case ControlKind::kAnswer:
      if (inquiry_.OnAnswer(from, rank, reader)) {
        OnTick(engine_.clock().Now());
      }
      return;
    case ControlKind::kRefused:
      inquiry_.OnRefused(rank, reader);
      return;
    case ControlKind::kBallot:
      mismatches_.OnBallot(rank, reader);
      return;
  }
}

// ---- [driver] Deadlines

Deadline CommCore::next_tick() const {
  if (mismatches_.voting()) {
    return mismatches_.until();  // the verdict ends everything
  }
  Deadline next = inquiry_.next_tick();
  if (inquiry_.busy()) {
    return next;  // calls that expire now are asked about afterwards
  }
  next = std::min(next, open_.FirstDeadline());
  const int64_t since = open_.RunningFunction().since_ns;
  return since == 0 || since == told_of_ns_ ? next : std::min(next, Deadline{since + kSecond});
}

void CommCore::OnTick(int64_t now_ns) {
  if (mismatches_.voting()) {
    mismatches_.OnTick(now_ns);
    return;
  }
  TellOfRunning(now_ns);
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i]->inquired && open_[i]->call().options.deadline.Passed(now_ns)) {
      inquiry_.Expire(open_[i], now_ns);
      if (end_.ended()) {
        return;
      }
    }
  }
  inquiry_.OnTick(now_ns);
}

void CommCore::TellOfRunning(int64_t now_ns) {
  const Running running = open_.RunningFunction();
  if (running.work != nullptr && running.since_ns != told_of_ns_ &&
      now_ns - running.since_ns >= kSecond) {
    told_of_ns_ = running.since_ns;
    ENTRAIN_LOG(kWarning, config_.name, ": ", words_.ReductionOf(*running.work),
                " has been running for ", (now_ns - running.since_ns) / kMillisecond,
                " ms; the call waits for it until its deadline");
  }
}

void CommCore::OnQuery(Endpoint& from, int rank, Reader& reader) {
  const auto nonce = reader.Get<uint32_t>();
  const auto asked = reader.Get<Asked>();
  const CallId call{reader.Get<uint32_t>(), reader.Get<uint32_t>()};
  const auto theirs = reader.Get<Descriptor>();
  if (!reader.Finished() || asked > Asked::kRecv) {
    return;
  }
  if (asked == Asked::kCollective && call != CallFunnel::kPing) {
    mismatches_.Compare(from, call,
                        theirs);  // ranks that called different things may wait for each other
  }
  if (mismatches_.voting()) {
    return;
  }
  using Answer = Membership::Answer;
  if (funnel_.HasMade(rank, asked, call)) {
    // An excuse of one that has started it: what keeps it from going on.
    const int64_t now = engine_.clock().Now();
    const CallWork* const work = asked == Asked::kCollective ? open_.Collective(call) : nullptr;
    const Running running = work == nullptr ? Running() : open_.HeldUpByFunction(*work, now);
    SendAnswer(rank, nonce, Answer::kStarted, 0,
               running.work == nullptr ? absl::OkStatus()
                                       : absl::DeadlineExceededError(words_.Words(running, now)));
  } else if (engine_.causes().told()) {
    SendAnswer(rank, nonce, Answer::kExcused, 0, engine_.causes().cause());
  } else if (const absl::Status inside = engine_.functions().Inside(OpenCalls::kLongRunNs);
             !inside.ok()) {
    SendAnswer(rank, nonce, Answer::kExcused, 0,
               WithBlame(inside, words_.BlameFor(nullptr, config_.rank, Phase::kReduce)));
  } else if (const auto other = engine_.WaitsElsewhere(this)) {
    const Deadline by = other->FindOut(
        [self = shared_from_this(), rank, nonce, asked, call](const absl::Status& why) {
          self->SendAnswer(rank, nonce,
                           self->funnel_.HasMade(rank, asked, call) ? Answer::kStarted
                           : why.ok()                               ? Answer::kAbsent
                                                                    : Answer::kExcused,
                           0, why);
        });
    SendAnswer(rank, nonce, Answer::kElsewhere, by.Left(engine_.clock().Now()));
  } else {
    SendAnswer(rank, nonce, Answer::kAbsent);
  }
}

void CommCore::SendAnswer(int rank, uint32_t nonce, Membership::Answer answer, int64_t more_ns,
                          const absl::Status& excuse) {
  if (end_.ended()) {
    return;  // the peer has been told why
  }
  peers_.SendSoon(
      rank, ControlKind::kAnswer,
      Writer().Put(nonce).Put(answer).Put(more_ns).PutText(EncodeStatus(excuse)).Take());
  engine_.seat().NeedFlush();
}

std::optional<int64_t> CommCore::waits_since() const {
  const CallWork* const oldest = open_.Oldest();
  return oldest == nullptr ? std::nullopt : std::optional(oldest->started_ns());
}

Deadline CommCore::FindOut(HeldUpBy then) {
  const Deadline by = inquiry_.FindOut(std::move(then));
  return mismatches_.voting() ? mismatches_.until() : by;
}

// ---- Calls that were refused

void CommCore::Refused(const Call& call, const absl::Status& why) {
  const std::optional<Refusal> refusal = funnel_.Refuse(call, why.message());
  if (!refusal) {
    return;
  }
  engine_.seat().RunInDriver([&] {
    const std::string body =
        Writer()
            .Put(refusal->kind)
            .Put(refusal->call.user_tag)
            .Put(refusal->call.number)
            .PutText(absl::string_view(refusal->why).substr(0, Refusal::kMaxWhy))
            .Take();
    if (!end_.ended()) {
      for (int r = 0; r < size(); ++r) {
        if (peers_.endpoint(r) != nullptr && !inquiry_.left(r)) {
          peers_.Send(r, ControlKind::kRefused, body);
        }
      }
      engine_.Flush();
    }
  });
}

// ---- [driver] Mismatches

void CommCore::OnEarly(Endpoint& from, const Envelope& envelope) {
  if (envelope.tag.lane() == Tag::kPointToPoint) {
    if (open_.in_line() > 0) {
      NeedAttention();
    }
  } else {
    mismatches_.Compare(from, {envelope.tag.user_tag(), envelope.tag.call()}, envelope.descriptor);
  }
}

bool CommCore::SaysNothing(int rank) const {
  const Endpoint* const endpoint = peers_.endpoint(rank);
  return inquiry_.left(rank) || (endpoint != nullptr && !engine_.PathStatus(endpoint).ok());
}

void CommCore::Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) {
  Fail(words_.Disagreement(call, sequence, votes));
}

}  // namespace entrain
