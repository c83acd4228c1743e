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
namespace {

// How much later than promised an answer may come.
constexpr int64_t kSlackNs = 100 * kMillisecond;
// The longest that a peer may make us wait for more of its answer.
constexpr int64_t kLongestMoreNs = 2 * kSecond;

}  // namespace

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
  asked_ = nullptr;
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, peers_.context(r), first);
    if (!membership_.left(r)) {
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
  TellThoseWhoAsked(first);
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
  if (membership_.left(rank)) {
    NeedAttention();  // of receives from any peer; what else waits for it fails by its completions
    return;
  }
  if (!membership_.losing()) {
    lost_why_ = why;
  }
  // A peer that has said why it may go is not waited for: nobody knows better.
  const bool told = !engine_.causes().Of(&from, opened_ns_).ok();
  membership_.OnLost(rank, engine_.clock().Now(),
                     told ? 0 : Membership::kGraceNs + peers_.SlowestRoundTrip());
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
      membership_.OnLeft(rank);
      mismatches_.OnGone(rank);
      return;
    case ControlKind::kQuery:
      OnQuery(from, rank, reader);
      return;
    case ControlKind::kAnswer:
      OnAnswer(from, rank, reader);
      return;
    case ControlKind::kRefused:
      OnRefused(rank, reader);
      return;
    case ControlKind::kBallot:
      mismatches_.OnBallot(rank, reader);
      return;
  }
}

// ---- [driver] Deadlines

bool CommCore::AsksForOthers() const {
  return membership_.inquiring() && asked_ != nullptr && !asked_->inquired;
}

Deadline CommCore::next_tick() const {
  if (mismatches_.voting()) {
    return mismatches_.until();  // the verdict ends everything
  }
  Deadline next = membership_.next_tick();
  if (membership_.inquiring() && !AsksForOthers()) {
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
      Expire(open_[i], now_ns);
      if (end_.ended()) {
        return;
      }
    }
  }
  if (const auto verdict = membership_.OnTick(now_ns)) {
    TakeVerdict(*verdict, now_ns);
  }
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

void CommCore::Expire(CallWork* work, int64_t now_ns) {
  if (const Running running = open_.HeldUpByFunction(*work, now_ns); running.work != nullptr) {
    Fail(words_.TimedOut(*work, words_.FindingOf(running, now_ns), now_ns));  // no need to ask
    return;
  }
  // One inquiry at a time; asked again when that one is over. One for others gives way, or goes on as ours.
  if (AsksForOthers() && work != asked_) {
    membership_.OnFinished();
  }
  work->inquired = work == asked_ || Ask(work, now_ns, Membership::kAnswerNs);
}

bool CommCore::Ask(CallWork* work, int64_t now_ns, int64_t answer_ns) {
  const Wiring& wiring = work->wiring();
  // Of messages nobody but the peer knows; the others are asked only whether they are there. Of a receive in line, the
  // peers are asked for the next message of each, since nothing has come for any that stands before it.
  const auto query = membership_.OnExpired(
      wiring.point_to_point ? CallFunnel::kPing : CallId{wiring.user_tag, wiring.call_number},
      now_ns, answer_ns + 2 * peers_.SlowestRoundTrip());
  if (!query) {
    return false;
  }
  asked_ = work;
  const Descriptor mine = work->call().descriptor();
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr || membership_.left(r)) {
      continue;
    }
    const bool peer = wiring.point_to_point && (r == work->peer() || work->peer() < 0);
    const Asked asked = !peer                                  ? Asked::kCollective
                        : work->call().kind == CallKind::kSend ? Asked::kRecv
                                                               : Asked::kSend;
    const CallId about = peer ? funnel_.CallIdWith(*work, r) : query->call;
    peers_.SendSoon(r, ControlKind::kQuery,
                    Writer()
                        .Put(query->nonce)
                        .Put(asked)
                        .Put(about.user_tag)
                        .Put(about.number)
                        .PutRaw(&mine, sizeof(mine))
                        .Take());
  }
  engine_.seat().NeedFlush();
  return true;
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

void CommCore::OnAnswer(const Endpoint& from, int rank, Reader& reader) {
  using Answer = Membership::Answer;
  const auto nonce = reader.Get<uint32_t>();
  auto answer = reader.Get<Answer>();
  const auto more_ns = reader.Get<int64_t>();
  const auto excuse = DecodeStatus(reader.GetText(kMaxControlBytes));
  if (!reader.Finished() || answer == Answer::kNone || answer > Answer::kAbsent || !excuse) {
    return;
  }
  if (answer == Answer::kExcused && excuse->ok()) {
    answer = Answer::kAbsent;
  }
  const int64_t now = engine_.clock().Now();
  Deadline more_by{0};
  if (answer == Answer::kElsewhere) {
    more_by = {now + std::clamp<int64_t>(more_ns, 0, kLongestMoreNs) + from.round_trip_ns() +
               kSlackNs};
  }
  if (!membership_.OnAnswer(rank, nonce, answer, more_by)) {
    return;
  }
  excuses_[static_cast<size_t>(rank)] = *excuse;
  if (membership_.next_tick().Passed(now)) {
    OnTick(now);
  }
}

std::optional<int64_t> CommCore::waits_since() const {
  const CallWork* const oldest = open_.Oldest();
  return oldest == nullptr ? std::nullopt : std::optional(oldest->started_ns());
}

Deadline CommCore::FindOut(HeldUpBy then) {
  those_who_asked_.push_back(std::move(then));
  const int64_t now = engine_.clock().Now();
  if (!membership_.inquiring() && !open_.empty()) {
    Ask(open_.Oldest(), now, Membership::kAnswerToOthersNs);
  }
  return mismatches_.voting() ? mismatches_.until() : membership_.until();
}

void CommCore::TellThoseWhoAsked(const absl::Status& why) {
  for (HeldUpBy& tell : std::exchange(those_who_asked_, {})) {
    tell(why);
  }
}

void CommCore::TakeVerdict(const Membership::Verdict& verdict, int64_t now_ns) {
  if (verdict.lost) {
    Fail(Loss(verdict.guilty, lost_why_));
    return;
  }
  CallWork* const work = std::exchange(asked_, nullptr);
  if (work == nullptr) {
    return;
  }
  Finding finding = FindingOf(*work, verdict);
  if (work->inquired) {
    finding.blame.late.assign(verdict.late.begin(), verdict.late.end());
    finding.blame.late_ranks = static_cast<int32_t>(verdict.late.size());
    Fail(words_.TimedOut(*work, finding, now_ns));
  } else {
    TellThoseWhoAsked(finding.awaited < 0 ? absl::OkStatus() : words_.HeldUp(*work, finding));
  }
}

Finding CommCore::FindingOf(const CallWork& work, const Membership::Verdict& verdict) const {
  using Answer = Membership::Answer;
  Finding finding{verdict.guilty, verdict.reason,
                  words_.BlameFor(&work, verdict.guilty, Phase::kTransfer)};
  const bool message = work.wiring().point_to_point;
  if (verdict.guilty < 0) {
    const int64_t now = engine_.clock().Now();
    if (const Running running = open_.HeldUpByFunction(work, now); running.work != nullptr) {
      return words_.FindingOf(running, now);
    }
    // All have started the call, and may be in a function of their callers'.
    for (int r = 0; r < size(); ++r) {
      const absl::Status& excuse = excuses_[static_cast<size_t>(r)];
      if (r != config_.rank && !membership_.left(r) && !excuse.ok()) {
        return {r, std::string(excuse.message()), words_.BlameFor(&work, r, Phase::kReduce)};
      }
    }
    const int from = work.WaitingFor();
    absl::StrAppend(&finding.reason,
                    from < 0 ? "" : absl::StrCat("; waiting for ", peers_.NameOf(from)));
    return finding;
  }
  const bool answers = verdict.answer != Answer::kNone;
  const bool from_any = message && work.peer() < 0 && size() > 2;
  if (from_any && answers && !verdict.late.empty()) {
    // Any of them might have sent it.
    finding.awaited = -1;
    finding.blame = words_.BlameFor(&work, -1, Phase::kTransfer);
    finding.reason = absl::StrCat("nothing has come from ", words_.RankList(verdict.late));
    return finding;
  }
  if (message && answers && !from_any && (verdict.guilty == work.peer() || work.peer() < 0)) {
    finding.reason = "it has not made the matching call";
  }
  const auto member = static_cast<size_t>(verdict.guilty);
  // One that has left may have done so because of what it had told before.
  const absl::Status excuse =
      verdict.answer == Answer::kExcused
          ? excuses_[member]
          : (membership_.left(verdict.guilty)
                 ? engine_.causes().Of(peers_.endpoint(verdict.guilty), opened_ns_)
                 : absl::OkStatus());
  if (!excuse.ok()) {
    absl::StrAppend(&finding.reason, ": ", excuse.message());
    finding.blame = words_.WithCall(words_.BlameHere(excuse), work);
  } else if (verdict.answer == Answer::kElsewhere) {
    absl::StrAppend(&finding.reason,
                    ", and waits in one of another communicator: who is guilty cannot be known");
    finding.blame = words_.BlameFor(&work, -1, Phase::kTransfer);
  } else if (IsDue(verdict.guilty, refusals_[member])) {
    absl::StrAppend(&finding.reason, ": its call failed: ", refusals_[member].why);
  }
  return finding;
}

absl::Status CommCore::Loss(int rank, const absl::Status& path) const {
  const Refusal& refusal = refusals_[static_cast<size_t>(rank)];
  return words_.Loss(rank, path, open_.first(), IsDue(rank, refusal) ? refusal.why : "",
                     engine_.causes().Of(peers_.endpoint(rank), opened_ns_));
}

// ---- Calls that were refused

void CommCore::Refused(const Call& call, const absl::Status& why) {
  const std::optional<Refusal> refusal = funnel_.Refuse(call, why.message());
  if (!refusal) {
    return;
  }
  engine_.seat().RunInDriver([&] {
    const std::string body = Writer()
                                 .Put(refusal->kind)
                                 .Put(refusal->call.user_tag)
                                 .Put(refusal->call.number)
                                 .PutText(absl::string_view(refusal->why).substr(0, kMaxRefusal))
                                 .Take();
    if (!end_.ended()) {
      for (int r = 0; r < size(); ++r) {
        if (peers_.endpoint(r) != nullptr && !membership_.left(r)) {
          peers_.Send(r, ControlKind::kRefused, body);
        }
      }
      engine_.Flush();
    }
  });
}

void CommCore::OnRefused(int rank, Reader& reader) {
  Refusal refusal;
  refusal.kind = reader.Get<Asked>();
  refusal.call.user_tag = reader.Get<uint32_t>();
  refusal.call.number = reader.Get<uint32_t>();
  refusal.why = CleanText(reader.GetText(kMaxRefusal));
  if (reader.Finished() && refusal.kind <= Asked::kRecv) {
    refusals_[static_cast<size_t>(rank)] = std::move(refusal);
  }
}

// Whether a call that waits for this rank here is the one that it failed to make; or, when none is under way, the next.
// Later ones show that it has made it after all.
bool CommCore::IsDue(int rank, const Refusal& refusal) const {
  if (refusal.why.empty()) {
    return false;
  }
  const bool collective = refusal.kind == Asked::kCollective;
  if (open_.empty()) {
    return collective && !funnel_.HasStarted(refusal.call);
  }
  return std::any_of(open_.works().begin(), open_.works().end(), [&](const CallWork* work) {
    const bool message = work->wiring().point_to_point;
    const bool receives = work->call().kind != CallKind::kSend;
    return message != collective && funnel_.CallIdWith(*work, rank) == refusal.call &&
           (collective || (receives == (refusal.kind == Asked::kSend) &&
                           (work->peer() == rank || work->peer() < 0)));
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
  return membership_.left(rank) || (endpoint != nullptr && !engine_.PathStatus(endpoint).ok());
}

void CommCore::Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) {
  Fail(words_.Disagreement(call, sequence, votes));
}

}  // namespace entrain
