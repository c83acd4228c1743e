// How a communicator meets a failure. Another object decides, without I/O and clock, and CommCore
// does what follows before the event returns:
//
//   event                                   decides        then the core
//   a lost path, a deadline, silence        Inquiry        asks the members; ends with the verdict
//   a question of a member                  Respondent     answers; asks another communicator first
//   calls that differ, a ballot             Mismatches     sends its ballot; ends with the verdict
//   an abort, an error, the user's release  Ending         revokes the context, tells, ends calls
//   agree, shrink, messages about them      SurvivorCalls  sends; opens the next communicator
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/flight/flight_log.h"

namespace entrain {

// ---- Events

void CommCore::OnLost(Endpoint& from, const absl::Status& why) {
  const int rank = peers_.RankOf(&from);
  if (rank < 0) {
    return;
  }
  agreements_.OnLost(rank, why, engine_.clock().Now());
  PerformAgreement();
  if (Over()) {
    return;
  }
  mismatches_.OnGone(rank);
  if (mismatches_.voting()) {
    NeedAttention();
  }
  if (inquiry_.left(rank)) {
    // A receive from any peer may wait for the lost rank. Other calls fail when their transfers
    // complete with an error.
    NeedAttention();
    return;
  }
  inquiry_.OnLost(rank, why, engine_.clock().Now());
}

void CommCore::OnControl(Endpoint& from, absl::string_view message) {
  const int rank = peers_.RankOf(&from);
  Reader reader(message);
  const auto kind = reader.Get<ControlKind>();
  if (rank < 0 || !reader.ok() ||
      (Over() && kind != ControlKind::kSurvivors && kind != ControlKind::kLeave)) {
    return;
  }
  if (inquiry_.watching()) {
    inquiry_.OnHeard(rank, engine_.clock().Now());
  }
  switch (kind) {
    case ControlKind::kAbort: {
      const std::optional<absl::Status> why = DecodeStatus(message.substr(1));
      // Fail sends the reason to all members, because the sender may die before it has told all of
      // them.
      Fail(why && !why->ok() ? *why
                             : absl::AbortedError(absl::StrCat(config_.name, ": ",
                                                               peers_.NameOf(rank), " ended it")));
      return;
    }
    case ControlKind::kLeave:
      inquiry_.OnLeft(rank);
      mismatches_.OnGone(rank);
      if (mismatches_.voting()) {
        NeedAttention();
      }
      agreements_.OnLeft(rank, engine_.clock().Now());
      PerformAgreement();
      return;
    case ControlKind::kSurvivors:
      BeginAgreement();
      agreements_.OnMessage(rank, message.substr(1), engine_.clock().Now());
      PerformAgreement();
      return;
    case ControlKind::kQuery: {
      const std::optional<Query> query = Query::From(reader);
      if (query && query->compares()) {
        // Two ranks that called different things may wait for each other, so compare the calls.
        runner_.Compare(from, query->call, query->theirs);
      }
      if (query && query->wants_answer() && !mismatches_.voting()) {
        AnswerTo(rank, *query);
      }
      return;
    }
    case ControlKind::kAnswer: {
      const int64_t now = engine_.clock().Now();
      if (inquiry_.OnAnswer(rank, reader, now)) {
        OnTick(now);
      }
      return;
    }
    case ControlKind::kRefused:
      inquiry_.OnRefused(rank, reader);
      return;
    case ControlKind::kBallot:
      mismatches_.OnBallot(rank, reader, runner_.VoteLimit());
      if (mismatches_.voting()) {
        NeedAttention();
      }
      return;
  }
}

Deadline CommCore::next_tick() const {
  if (Over()) {
    return agreements_.next_tick();
  }
  if (mismatches_.voting()) {
    return mismatches_.until();  // the verdict of the vote ends all calls
  }
  const Deadline next = std::min(inquiry_.next_tick(), agreements_.next_tick());
  if (inquiry_.busy()) {
    return next;  // the inquiry about another expired call begins after this one
  }
  return std::min({next, open_.FirstDeadline(), runner_.next_tick()});
}

void CommCore::OnTick(int64_t now_ns) {
  if (agreements_.next_tick().Passed(now_ns)) {
    agreements_.OnTick(now_ns, peers_.Received());
    PerformAgreement();
  }
  if (Over()) {
    return;
  }
  if (mismatches_.voting()) {
    AttendVote();
    return;
  }
  runner_.OnTick(now_ns);
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i]->inquired && open_[i]->call().options.deadline.Passed(now_ns)) {
      inquiry_.Expire(open_[i], now_ns);
      PerformInquiry();
      if (ending_.ended()) {
        return;
      }
    }
  }
  inquiry_.OnTick(now_ns);
  PerformInquiry();
}

// ---- Questions to the members, and of members

void CommCore::PerformInquiry() {
  if (!inquiry_.has_effects()) {
    return;
  }
  const Inquiry::Effects todo = inquiry_.TakeEffects();
  for (const Inquiry::Effects::Question& question : todo.questions) {
    peers_.SendSoon(question.to, ControlKind::kQuery, question.text);
  }
  if (!todo.questions.empty()) {
    NeedFlush();
  }
  if (!todo.warning.empty()) {
    ENTRAIN_LOG(kWarning, todo.warning);
  }
  if (!todo.end.ok()) {
    Fail(todo.end);
  }
  if (todo.found) {
    for (HeldUpBy& tell : std::exchange(those_who_asked_, {})) {
      tell(*todo.found);
    }
  }
}

Deadline CommCore::FindOut(HeldUpBy then) {
  those_who_asked_.push_back(std::move(then));
  const Deadline by = inquiry_.FindOut(engine_.clock().Now());
  PerformInquiry();
  return mismatches_.voting() ? mismatches_.until() : by;
}

void CommCore::AnswerTo(int rank, const Query& query) {
  const auto other = engine_.WaitsElsewhere(this);
  const int64_t now = engine_.clock().Now();
  Respondent::Reply reply = respondent_.To(
      rank, query, {engine_.functions().Inside(OpenCalls::kLongRunNs), other != nullptr, now});
  if (reply.answer == BlameDecision::Answer::kElsewhere) {
    // The first answer says until when the second one comes.
    reply.more_ns =
        other
            ->FindOut([self = shared_from_this(), rank, query](const absl::Status& why) {
              self->SendAnswer(rank, query, self->respondent_.After(rank, query, why));
            })
            .Left(now);
  }
  SendAnswer(rank, query, reply);
}

void CommCore::SendAnswer(int rank, const Query& query, const Respondent::Reply& reply) {
  if (ending_.ended()) {
    return;  // the peer already knows why the communicator ended
  }
  peers_.SendSoon(rank, ControlKind::kAnswer, respondent_.TextOf(query, reply));
  NeedFlush();
}

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
    if (!ending_.ended()) {
      for (int r = 0; r < size(); ++r) {
        if (peers_.endpoint(r) != nullptr && !inquiry_.left(r)) {
          peers_.Send(r, ControlKind::kRefused, body);
        }
      }
      engine_.Flush();
    }
  });
}

// ---- Calls that differ

void CommCore::AttendVote() {
  if (!mismatches_.voting()) {
    return;
  }
  const CallId call = mismatches_.call();
  const std::optional<OwnCall> mine = runner_.Own(call);
  if (const auto ballot = mismatches_.TakeBallot(mine, runner_.HasForgotten(call))) {
    for (int r = 0; r < size(); ++r) {
      if (peers_.endpoint(r) != nullptr && !mismatches_.gone(r)) {
        peers_.SendSoon(r, ControlKind::kBallot, *ballot);
      }
    }
    NeedFlush();
  }
  if (const auto verdict = mismatches_.TakeVerdict(engine_.clock().Now())) {
    if (verdict->votes.parties.size() > 1) {
      Fail(words_.Disagreement(call, mine ? mine->sequence : call.number, verdict->votes));
    } else if (!verdict->between_two.ok()) {
      Fail(verdict->between_two);
    }
    runner_.VoteIsOver();
  }
}

// ---- The end

void CommCore::Abort(absl::string_view reason) {
  ending_.Abort(reason);
  EndSoon(/*leaves=*/false);
}

void CommCore::EndHere(const absl::Status& why, bool leaves) {
  ending_.EndHere(why);
  EndSoon(leaves);
}

void CommCore::EndLike(const CommCore& parent) {
  ending_.EndLike(parent.ending_);
  EndSoon(/*leaves=*/false);
}

void CommCore::EndSoon(bool leaves) {
  class EndJob final : public Job {
   public:
    EndJob(std::shared_ptr<CommCore> core, bool leaves) : core_(std::move(core)), leaves_(leaves) {}
    void Run() override {
      core_->Fail(core_->end().status());
      if (leaves_) {
        core_->SayFarewell("");
      }
      delete this;
    }

   private:
    const std::shared_ptr<CommCore> core_;
    const bool leaves_;
  };
  engine_.seat().Submit(new EndJob(shared_from_this(), leaves));
  engine_.seat().Kick();
}

void CommCore::EndWith(const absl::Status& why) {
  ending_.EndWith(why);
  engine_.seat().RunInDriver([this] {
    Fail(ending_.status());
    engine_.Flush();
  });
}

std::shared_ptr<void> CommCore::EndToo(const std::shared_ptr<CommCore>& part) {
  auto tie = std::make_shared<Tie>(part);
  engine_.seat().RunInDriver([&] {
    if (ending_.ended()) {
      part->EndLike(*this);
    } else {
      end_too_.push_back(tie);
    }
  });
  return tie;
}

void CommCore::Fail(const absl::Status& why) {
  if (const auto end = ending_.Fail(why, engine_.causes().cause())) {
    Perform(*end);
  }
}

void CommCore::Perform(const Ending::End& end) {
  const std::shared_ptr<CommCore> keep = shared_from_this();
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, peers_.context(r), end.why);
    if (!inquiry_.left(r)) {
      peers_.SendTwice(r, ControlKind::kAbort, EncodeStatus(end.told));
    }
  }
  // Also tells the members of this process's other communicators, because these communicators may
  // end as a result.
  engine_.causes().Tell(absl::StartsWith(end.told.message(), config_.name)
                            ? end.told
                            : Annotate(end.told, config_.name));
  engine_.RevokeContext(config_.context);
  NeedFlush();
  if (!open_.empty()) {
    ENTRAIN_LOG(kInfo, end.why.message());
  }
  // Before the calls end, because a flight dump shows the ranks for which the calls wait.
  TellOfFailure();
  // Stop the inquiry before the calls end. Otherwise, when the call under inquiry ends, the ranks
  // that asked about it would get the answer that nothing holds it up.
  inquiry_.Stop(end.why);
  PerformInquiry();
  runner_.Stop(end.why);
  mismatches_.Stop();
}

void CommCore::SayFarewell(absl::string_view what) {
  const auto farewell = ending_.Leave(what, open_, engine_.causes().cause());
  if (!farewell) {
    return;
  }
  if (farewell->end) {
    Perform(*farewell->end);
  }
  for (int r = 0; r < size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    peers_.Send(r, ControlKind::kLeave);
    if (!farewell->quietly.ok()) {
      endpoint->Revoke(config_.context, peers_.context(r), farewell->quietly);
    }
  }
  engine_.CloseContext(config_.context);
}

void CommCore::Leave(absl::string_view what) {
  agreements_.Close(absl::AbortedError(absl::StrCat(config_.name, ": this rank ", what)));
  PerformAgreement();
  SayFarewell(what);
}

void CommCore::OnShutdown() {
  Leave("destroyed its runtime");
}

void CommCore::TellOfFailure() {
  FlightLog::Get().OnFailure(*this);
  for (const std::weak_ptr<Tie>& one : end_too_) {
    const std::shared_ptr<Tie> tie = one.lock();
    if (const std::shared_ptr<CommCore> part = tie == nullptr ? nullptr : tie->lock()) {
      part->EndLike(*this);
    }
  }
}

// ---- Agreements on the remaining ranks

SurvivorWork::SurvivorWork(Engine& engine, std::string comm, Survivors::Kind kind)
    : Work(&engine), comm_(std::move(comm)), kind_(kind), started_ns_(engine.clock().Now()) {}

SurvivorWork::~SurvivorWork() = default;

WorkInfo SurvivorWork::Info() const {
  return {comm_, NameOf(kind_), -1, 0, started_ns_};
}

RefPtr<SurvivorWork> CommCore::StartAgreement(Survivors::Wish wish, int64_t timeout_ns,
                                              const std::string& name) {
  auto work = RefPtr<SurvivorWork>::Adopt(new SurvivorWork(engine_, config_.name, wish.kind));
  engine_.seat().RunInDriver([&] {
    StartAgreement(work, {.wish = std::move(wish),
                          .timeout_ns = timeout_ns > 0 ? timeout_ns : funnel_.timeout_ns(),
                          .started_ns = work->started_ns_,
                          .silence_ns = inquiry_.silence_ns(),
                          .next_name = name.empty() ? config_.name : name});
  });
  return work;
}

void CommCore::BeginAgreement() {
  if (!agreements_.begun()) {
    agreements_.Begin(Members(), engine_.clock().Now());
  }
}

void CommCore::StartAgreement(const RefPtr<SurvivorWork>& work, SurvivorCall call) {
  BeginAgreement();
  if (agreements_.WantsContext(call.wish.kind)) {
    call.wish.context = engine_.ReserveContext();
  }
  if (const absl::Status status = agreements_.Start(std::move(call), engine_.clock().Now());
      !status.ok()) {
    work->Finish(status);
    return;
  }
  engine_.seat().CountOpenWork(1);
  agreeing_ = work;
  PerformAgreement();
}

void CommCore::PerformAgreement() {
  SurvivorCalls::Effects todo = agreements_.TakeEffects();
  for (const Survivors::Message& message : todo.messages) {
    peers_.Send(message.to, ControlKind::kSurvivors, message.text);
  }
  if (!todo.messages.empty()) {
    NeedFlush();
  }
  if (todo.next) {
    next_ = MakeFrom(*this, todo.next->name, config_.generation + 1, todo.next->members);
    next_->Open();
    engine_.causes().GoneOn();
  }
  for (const Context context : todo.unused) {
    engine_.ReleaseContext(context);
  }
  if (!todo.stale.ok()) {
    if (const auto end = ending_.EndAsStale(todo.stale)) {
      Perform(*end);
    }
  }
  if (todo.drops_next) {
    next_->EndHere(absl::AbortedError(absl::StrCat(next_->config_.name, ": rank ", next_->rank(),
                                                   " had timed out in the shrink that made it")),
                   /*leaves=*/true);
    next_.reset();
  }
  if (todo.over) {
    const RefPtr<SurvivorWork> work = std::exchange(agreeing_, {});
    engine_.seat().CountOpenWork(-1);
    work->flag_ = todo.over->flag;
    if (todo.over->takes_next) {
      work->next_ = std::move(next_);
    }
    work->Finish(todo.over->status);
  }
}

}  // namespace entrain
