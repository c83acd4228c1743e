#include "lib/comm/comm_events.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

CommEvents::CommEvents(EventsOwner& owner, const Parts& parts)
    : owner_(owner),
      with_(parts),
      mismatches_(*this, with_.open, with_.peers, with_.engine.clock()),
      inquiry_(*this, with_.peers, with_.funnel, with_.open, with_.words, with_.engine.clock(),
               with_.config.silence_ns),
      respondent_(with_.engine, with_.peers, with_.funnel, with_.open, with_.words),
      survivors_(*this, with_.engine, with_.peers, with_.words, with_.config.name,
                 with_.config.generation) {}

// ---- Calls

void CommEvents::Open() {
  opened_ns_ = with_.engine.clock().Now();
  with_.engine.OpenContext(with_.config.context, {owner_.Keep(), this});
  for (int r = 0; r < with_.peers.size(); ++r) {
    Endpoint* const endpoint = with_.peers.endpoint(r);
    if (endpoint != nullptr && !with_.engine.PathStatus(endpoint).ok()) {
      OnLost(*endpoint, with_.engine.PathStatus(endpoint));
      return;
    }
  }
}

void CommEvents::Leave(absl::string_view what) {
  survivors_.Close(absl::AbortedError(absl::StrCat(with_.config.name, ": this rank ", what)));
  with_.ending.Leave(what);
}

std::vector<MemberReport> CommEvents::Members() const {
  std::vector<MemberReport> reports;
  for (int r = 0; r < with_.peers.size(); ++r) {
    MemberReport report;
    report.id = with_.peers.member(r).id;
    report.parent_rank = with_.peers.member(r).parent_rank;
    const Endpoint* const endpoint = with_.peers.endpoint(r);
    report.why = endpoint == nullptr ? absl::OkStatus() : with_.engine.PathStatus(endpoint);
    report.state = inquiry_.left(r)  ? MemberReport::State::kLeft
                   : report.why.ok() ? MemberReport::State::kAlive
                                     : MemberReport::State::kLost;
    reports.push_back(std::move(report));
  }
  return reports;
}

void CommEvents::NeedAttention() {
  if (!attending_) {
    attending_ = true;
    with_.engine.NeedAttention(this);
  }
}

void CommEvents::Attend() {
  const std::shared_ptr<void> keep = owner_.Keep();
  attending_ = false;
  with_.runner.Attend();
}

std::string CommEvents::UserOf(ConstBytes bytes) const {
  const CallWork* const user = with_.open.UserOf(bytes);
  return user == nullptr ? "" : absl::StrCat(user->Name(), " on ", with_.config.name);
}

void CommEvents::EndCalls(const absl::Status& why) {
  // The owner requests a flight dump. It must do so before the calls end, because the dump shows
  // the ranks for which the calls wait.
  owner_.OnFailure();
  // Stop the inquiry before the calls end. Otherwise, when the call under inquiry ends, the ranks
  // that asked about it would get the answer that nothing holds it up.
  inquiry_.Stop(why);
  with_.runner.Stop(why);
  mismatches_.Stop();
}

void CommEvents::OnShutdown() {
  Leave("destroyed its runtime");
}

// ---- Members

void CommEvents::OnLost(Endpoint& from, const absl::Status& why) {
  const int rank = with_.peers.RankOf(&from);
  if (rank < 0) {
    return;
  }
  survivors_.OnLost(rank, why);
  if (Over()) {
    return;
  }
  mismatches_.OnGone(rank);
  if (inquiry_.left(rank)) {
    // A receive from any peer may wait for the lost rank. Other calls fail when their transfers
    // complete with an error.
    NeedAttention();
    return;
  }
  inquiry_.OnLost(rank, why);
}

absl::Status CommEvents::CauseOf(int rank) const {
  return with_.engine.causes().Of(with_.peers.endpoint(rank), opened_ns_);
}

bool CommEvents::SaysNothing(int rank) const {
  const Endpoint* const endpoint = with_.peers.endpoint(rank);
  return inquiry_.left(rank) || (endpoint != nullptr && !with_.engine.PathStatus(endpoint).ok());
}

void CommEvents::OnEarly(Endpoint& from, const Envelope& envelope) {
  if (envelope.tag.lane() == Tag::kPointToPoint) {
    if (with_.open.in_line() > 0) {
      NeedAttention();
    }
  } else {
    mismatches_.Compare(from, {envelope.tag.user_tag(), envelope.tag.call()}, envelope.descriptor);
  }
}

void CommEvents::Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) {
  Fail(with_.words.Disagreement(call, sequence, votes));
}

void CommEvents::OnControl(Endpoint& from, absl::string_view message) {
  const int rank = with_.peers.RankOf(&from);
  Reader reader(message);
  const auto kind = reader.Get<ControlKind>();
  if (rank < 0 || !reader.ok() ||
      (Over() && kind != ControlKind::kSurvivors && kind != ControlKind::kLeave)) {
    return;
  }
  inquiry_.OnHeard(rank);
  switch (kind) {
    case ControlKind::kAbort: {
      const std::optional<absl::Status> why = DecodeStatus(message.substr(1));
      // Fail sends the reason to all members, because the sender may die before it has told all of
      // them.
      Fail(why && !why->ok()
               ? *why
               : absl::AbortedError(
                     absl::StrCat(with_.config.name, ": ", with_.peers.NameOf(rank), " ended it")));
      return;
    }
    case ControlKind::kLeave:
      inquiry_.OnLeft(rank);
      mismatches_.OnGone(rank);
      survivors_.OnLeft(rank);
      return;
    case ControlKind::kSurvivors:
      survivors_.OnControl(rank, message.substr(1));
      return;
    case ControlKind::kQuery: {
      const std::optional<Query> query = Query::From(reader);
      if (query && query->compares()) {
        // Two ranks that called different things may wait for each other, so compare the calls.
        mismatches_.Compare(from, query->call, query->theirs);
      }
      if (query && query->wants_answer() && !mismatches_.voting()) {
        respondent_.To({owner_.Keep(), this}, rank, *query);
      }
      return;
    }
    case ControlKind::kAnswer:
      if (inquiry_.OnAnswer(from, rank, reader)) {
        OnTick(with_.engine.clock().Now());
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

// ---- Deadlines

bool CommEvents::Over() const {
  return !with_.engine.Accepts(with_.config.context);
}

Deadline CommEvents::next_tick() const {
  if (Over()) {
    return survivors_.next_tick();
  }
  if (mismatches_.voting()) {
    return mismatches_.until();  // the verdict of the vote ends all calls
  }
  const Deadline next = std::min(inquiry_.next_tick(), survivors_.next_tick());
  if (inquiry_.busy()) {
    return next;  // the inquiry about another expired call begins after this one
  }
  return std::min({next, with_.open.FirstDeadline(), with_.runner.next_tick()});
}

void CommEvents::OnTick(int64_t now_ns) {
  survivors_.OnTick(now_ns);
  if (Over()) {
    return;
  }
  if (mismatches_.voting()) {
    mismatches_.OnTick(now_ns);
    return;
  }
  with_.runner.OnTick(now_ns);
  for (size_t i = 0; i < with_.open.size(); ++i) {
    if (!with_.open[i]->inquired && with_.open[i]->call().options.deadline.Passed(now_ns)) {
      inquiry_.Expire(with_.open[i], now_ns);
      if (with_.ending.ended()) {
        return;
      }
    }
  }
  inquiry_.OnTick(now_ns);
}

std::optional<int64_t> CommEvents::waits_since() const {
  const CallWork* const oldest = with_.open.Oldest();
  return oldest == nullptr ? std::nullopt : std::optional(oldest->started_ns());
}

Deadline CommEvents::FindOut(HeldUpBy then) {
  const Deadline by = inquiry_.FindOut(std::move(then));
  return mismatches_.voting() ? mismatches_.until() : by;
}

}  // namespace entrain
