#include "lib/comm/failure/survivor_calls.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

using Kind = Survivors::Kind;

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.3g s", static_cast<double>(ns) * 1e-9);
}

}  // namespace

absl::string_view NameOf(Kind kind) {
  return kind == Kind::kShrink ? "shrink" : "agree";
}

// ---- Events

void SurvivorCalls::Begin(absl::Span<const MemberReport> members, int64_t now_ns) {
  received_.resize(members.size());
  machine_.emplace(peers_.rank(), peers_.size());
  for (int r = 0; r < peers_.size(); ++r) {
    const MemberReport& member = members[static_cast<size_t>(r)];
    if (member.state == MemberReport::State::kLeft || Proves(r, member.why)) {
      machine_->OnGone(r, now_ns);
    } else if (member.state == MemberReport::State::kLost) {
      machine_->OnCut(r, now_ns);
    }
  }
}

int64_t SurvivorCalls::Silence() const {
  const int64_t quarter = call_->timeout_ns / 4, allowed = call_->silence_ns;
  return std::clamp(allowed > 0 ? std::min(quarter, allowed) : quarter, kLeastSilenceNs,
                    kMostSilenceNs);
}

// Inside a host, no network failure can break a connection. So if a connection to a process of this
// host was reset or closed, that process has ended.
bool SurvivorCalls::Proves(int rank, const absl::Status& why) const {
  const int error = BlameOf(why).sys_errno;
  return !why.ok() && (IsPeerEnded(why) ||
                       ((error == ECONNRESET || error == EPIPE) &&
                        peers_.member(rank).host_id == peers_.member(peers_.rank()).host_id));
}

bool SurvivorCalls::WantsContext(Kind kind) const {
  const bool joins = machine_->pending() && machine_->pending_kind() == kind;
  return kind == Kind::kShrink && !call_ && closed_.ok() && !joins &&
         machine_->end() == Survivors::End::kNone && !(late_ && late_->kind == kind);
}

absl::Status SurvivorCalls::Start(SurvivorCall call, int64_t now_ns) {
  if (call_ || !closed_.ok()) {
    return !closed_.ok() ? closed_
                         : absl::FailedPreconditionError(
                               absl::StrCat(NameOf(call.wish.kind), ": another thread is in ",
                                            NameOf(call_->wish.kind), " of ", name_));
  }
  now_ns_ = now_ns;
  call_ = std::move(call);
  passed_ = false;
  if (machine_->end() != Survivors::End::kNone) {
    After();
    End({Stale()});
  } else if (late_ && late_->kind == call_->wish.kind) {
    End(std::exchange(late_, std::nullopt)->outcome);
  } else {
    BeginCall();
  }
  return absl::OkStatus();
}

// Makes the call of call_ in machine_. machine_ handles one call at a time. An earlier call that
// has timed out may still be pending. If it is of another kind, it must be decided before the call
// of call_ begins.
void SurvivorCalls::BeginCall() {
  Survivors::Wish& wish = call_->wish;
  const bool pending = machine_->pending();
  passed_ = !pending || machine_->pending_kind() == wish.kind;
  if (!pending) {
    kind_ = wish.kind;
    next_name_ = call_->next_name;
    context_ = wish.context;
  }
  machine_->Call(wish, now_ns_, Silence());
  if (!pending) {
    wish.context = 0;  // from now on it belongs to the agreement, which may outlive the call
  }
  After();
}

void SurvivorCalls::OnMessage(int rank, absl::string_view text, int64_t now_ns) {
  now_ns_ = now_ns;
  machine_->OnMessage(rank, text, now_ns);
  After();
}

void SurvivorCalls::OnLost(int rank, const absl::Status& why, int64_t now_ns) {
  if (machine_) {
    now_ns_ = now_ns;
    Proves(rank, why) ? machine_->OnGone(rank, now_ns) : machine_->OnCut(rank, now_ns);
    After();
  }
}

void SurvivorCalls::OnLeft(int rank, int64_t now_ns) {
  if (machine_) {
    now_ns_ = now_ns;
    machine_->OnGone(rank, now_ns);
    After();
  }
}

Deadline SurvivorCalls::next_tick() const {
  const Deadline machine = machine_ ? machine_->next_tick() : Deadline::Never();
  return call_ ? std::min(machine, Deadline::From(call_->started_ns, call_->timeout_ns)) : machine;
}

void SurvivorCalls::OnTick(int64_t now_ns, absl::Span<const uint64_t> received) {
  now_ns_ = now_ns;
  if (machine_ && machine_->next_tick().Passed(now_ns)) {
    for (size_t r = 0; r < received_.size(); ++r) {
      if (std::exchange(received_[r], received[r]) != received[r]) {
        machine_->OnHeard(static_cast<int>(r), now_ns);
      }
    }
    machine_->OnTick(now_ns);
    After();
  }
  if (call_ && Deadline::From(call_->started_ns, call_->timeout_ns).Passed(now_ns)) {
    End({TimedOut()});
  }
}

void SurvivorCalls::Close(const absl::Status& why) {
  closed_.Update(why);
  if (call_) {
    End({why});
  }
  todo_.drops_next = late_ && late_->outcome.takes_next;
  late_.reset();
  ReleaseContext();
}

// ---- Results

void SurvivorCalls::After() {
  for (Survivors::Message& message : machine_->TakeMessages()) {
    todo_.messages.push_back(std::move(message));
  }
  if (machine_->number() != seen_) {
    seen_ = machine_->number();
    TakeDecision();
  } else if (machine_->end() != Survivors::End::kNone && !ended_) {
    TakeEnd();
  }
}

void SurvivorCalls::TakeDecision() {
  const Survivors::Decision& decision = *machine_->last();
  Late result{kind_, {Wrong(decision, seen_ - 1), decision.flag}};
  kind_ = Kind::kShrink;
  if (result.kind == Kind::kShrink && result.outcome.status.ok()) {
    todo_.next = Next{next_name_, {}};
    for (const int r : decision.members.ranks()) {
      todo_.next->members.emplace_back(r, decision.contexts[todo_.next->members.size()]);
    }
    result.outcome.takes_next = true;
    context_ = 0;
  }
  ReleaseContext();
  if (call_ && passed_) {
    End(std::move(result.outcome));
    return;
  }
  if (result.kind == Kind::kShrink || !late_) {
    late_ = std::move(result);
  }
  if (call_) {
    BeginCall();  // call_ has waited for this decision of an earlier call
  }
}

void SurvivorCalls::TakeEnd() {
  ended_ = true;
  ReleaseContext();
  todo_.stale = Stale();
  if (call_) {
    End({todo_.stale});
  }
}

void SurvivorCalls::End(Outcome outcome) {
  if (call_->wish.context != 0) {
    todo_.unused.push_back(call_->wish.context);
  }
  call_.reset();
  todo_.over = std::move(outcome);
}

void SurvivorCalls::ReleaseContext() {
  if (context_ != 0) {
    todo_.unused.push_back(std::exchange(context_, Context{0}));
  }
}

// ---- Words

absl::Status SurvivorCalls::Say(absl::StatusCode code, absl::string_view operation, uint32_t number,
                                int guilty, Phase phase, const std::string& text) const {
  Blame blame = words_.BlameFor(nullptr, guilty, phase);
  blame.operation = std::string(operation);
  blame.sequence = number;
  if (call_) {
    blame.elapsed_ns = now_ns_ - call_->started_ns;
    blame.deadline_ns = call_->timeout_ns;
  }
  return WithBlame(
      absl::Status(code, absl::StrCat(operation, " #", number, " of ", name_, ": ", text)), blame);
}

absl::Status SurvivorCalls::TimedOut() const {
  const std::vector<int> absent = machine_->knowledge().not_called();
  const int leader = machine_->knowledge().leader();
  const int guilty = !absent.empty() ? absent[0] : leader == peers_.rank() ? -1 : leader;
  const std::string why =
      !absent.empty() ? absl::StrCat(FailureWords::RankList(absent), " did not make the call")
      : guilty < 0    ? std::string("the other ranks wait for ranks that do not reach this one")
                      : absl::StrCat(peers_.NameOf(guilty), " does not decide");
  absl::Status status =
      Say(absl::StatusCode::kDeadlineExceeded, NameOf(call_->wish.kind), machine_->number(), guilty,
          Phase::kTransfer,
          absl::StrCat("timed out on rank ", peers_.rank(), " after ",
                       Seconds(now_ns_ - call_->started_ns), " (deadline ",
                       Seconds(call_->timeout_ns), "): ", why, "; the call may be repeated"));
  Blame blame = BlameOf(status);
  blame.late.assign(absent.begin(), absent.end());
  blame.late.resize(std::min(blame.late.size(), Blame::kMaxLate));
  blame.late_ranks = static_cast<int32_t>(absent.size());
  return WithBlame(std::move(status), blame);
}

absl::Status SurvivorCalls::Wrong(const Survivors::Decision& decision, uint32_t number) const {
  const std::string who = decision.culprit < 0 ? std::string() : peers_.NameOf(decision.culprit);
  switch (decision.error) {
    case Survivors::Error::kNone:
      return absl::OkStatus();
    case Survivors::Error::kKinds:
      return Say(absl::StatusCode::kDataLoss, NameOf(kind_), number, decision.culprit,
                 Phase::kCheck,
                 absl::StrCat("ranks disagree: ", who, " called ",
                              NameOf(decision.kind == Kind::kShrink ? Kind::kAgree : Kind::kShrink),
                              ", others called ", NameOf(decision.kind)));
    case Survivors::Error::kPolicies:
      return Say(absl::StatusCode::kDataLoss, NameOf(kind_), number, decision.culprit,
                 Phase::kCheck,
                 absl::StrCat("partition: ", who, " gave ", decision.any ? "majority" : "any",
                              ", others gave ", decision.any ? "any" : "majority"));
    case Survivors::Error::kContexts:
      return Say(absl::StatusCode::kResourceExhausted, NameOf(kind_), number, decision.culprit,
                 Phase::kCheck,
                 absl::StrCat(who, " has created 65535 communicators, which is the limit"));
  }
  return absl::InternalError("a decision of an unknown kind");
}

absl::Status SurvivorCalls::Stale() const {
  const Survivors& machine = *machine_;
  const SurvivorKnowledge& knows = machine.knowledge();
  const std::vector<int> others = machine.those_who_went_on().ranks();
  std::vector<int> unreached, reached;
  for (const int r : knows.base().Without(knows.gone()).ranks()) {
    (knows.cut().Has(r) ? unreached : reached).push_back(r);
  }
  std::string why;
  switch (machine.end()) {
    case Survivors::End::kExcluded:
      why = absl::StrCat(peers_.NameOf(machine.by()), " excludes it");
      break;
    case Survivors::End::kTakenGone:
      why = absl::StrCat(peers_.NameOf(machine.by()), " takes it for dead");
      break;
    case Survivors::End::kMinority:
      why = absl::StrCat("it reaches too few ranks to go on (of ", knows.base().count(),
                         " ranks, it does not reach ", FailureWords::RankList(unreached),
                         ", which may live and go on)");
      break;
    case Survivors::End::kLeftOut:
    case Survivors::End::kNone:
      why = "the others did not hear of it in time, or not all of them reached it";
      break;
  }
  return Say(
      // The rank that excludes this rank is not guilty, so the error blames nobody.
      absl::StatusCode::kOutOfRange, NameOf(kind_), machine.number(), -1, Phase::kTransfer,
      absl::StrCat(
          "rank ", peers_.rank(), " is left out of generation ", generation_ + 1, ": ", why,
          others.empty() ? "" : absl::StrCat("; ", FailureWords::RankList(others), " went on")));
}

}  // namespace entrain
