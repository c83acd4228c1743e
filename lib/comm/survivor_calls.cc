#include "lib/comm/survivor_calls.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

using Kind = Survivors::Kind;

absl::string_view NameOf(Kind kind) {
  return kind == Kind::kShrink ? "shrink" : "agree";
}

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.3g s", static_cast<double>(ns) * 1e-9);
}

}  // namespace

// ---- The work

SurvivorWork::SurvivorWork(Engine& engine, Survivors::Wish wish, int64_t timeout_ns,
                           std::string comm, std::string name)
    : Work(&engine),
      comm_(std::move(comm)),
      name_(std::move(name)),
      wish_(std::move(wish)),
      timeout_ns_(timeout_ns),
      started_ns_(engine.clock().Now()) {}

SurvivorWork::~SurvivorWork() = default;

absl::string_view SurvivorWork::operation() const {
  return NameOf(wish_.kind);
}

WorkInfo SurvivorWork::Info() const {
  return {comm_, operation(), -1, 0, started_ns_};
}

// ---- Events

SurvivorCalls::SurvivorCalls(CommShell& shell, Engine& engine, const Peers& peers,
                             const FailureWords& words, const std::string& name,
                             uint64_t generation)
    : shell_(shell),
      engine_(engine),
      peers_(peers),
      words_(words),
      name_(name),
      generation_(generation),
      received_(static_cast<size_t>(peers.size()), 0) {}

int64_t SurvivorCalls::Silence() const {
  const int64_t quarter = work_->timeout_ns_ / 4, allowed = shell_.silence_ns();
  return std::clamp(allowed > 0 ? std::min(quarter, allowed) : quarter, kLeastSilenceNs,
                    kMostSilenceNs);
}

Survivors& SurvivorCalls::machine() {
  if (!machine_) {
    machine_.emplace(peers_.rank(), peers_.size());
    const int64_t now = engine_.clock().Now();
    for (int r = 0; r < peers_.size(); ++r) {
      if (r == peers_.rank()) {
        continue;
      }
      const absl::Status path = engine_.PathStatus(peers_.endpoint(r));
      if (shell_.left(r) || Proves(r, path)) {
        machine_->OnGone(r, now);
      } else if (!path.ok()) {
        machine_->OnCut(r, now);
      }
    }
  }
  return *machine_;
}

// Inside a host, no network failure can break a connection. So if a connection to a process of this
// host was reset or closed, that process has ended.
bool SurvivorCalls::Proves(int rank, const absl::Status& why) const {
  const int error = BlameOf(why).sys_errno;
  return !why.ok() && (IsPeerEnded(why) ||
                       ((error == ECONNRESET || error == EPIPE) &&
                        peers_.member(rank).host_id == peers_.member(peers_.rank()).host_id));
}

void SurvivorCalls::Start(RefPtr<SurvivorWork> work) {
  engine_.seat().CountOpenWork(1);
  if (work_ || !closed_.ok()) {
    work->Finish(!closed_.ok() ? closed_
                               : absl::FailedPreconditionError(
                                     absl::StrCat(work->operation(), ": another thread is in ",
                                                  work_->operation(), " of ", name_)));
    engine_.seat().CountOpenWork(-1);
    return;
  }
  work_ = std::move(work);
  begun_ = false;
  if (machine().end() != Survivors::End::kNone) {
    After();
    End(Stale());
    return;
  }
  if (untaken_ && untaken_->kind == work_->wish_.kind) {
    Give(*std::exchange(untaken_, std::nullopt));
    return;
  }
  Begin();
}

// Makes the call of work_ in machine_. machine_ handles one call at a time. An earlier call that
// has timed out may still be pending. If it is of another kind, it must be decided before the call
// of work_ begins.
void SurvivorCalls::Begin() {
  Survivors::Wish wish = work_->wish_;
  const bool pending = machine().pending();
  begun_ = !pending || machine().pending_kind() == wish.kind;
  if (!pending) {
    kind_ = wish.kind;
    next_name_ = work_->name_;
    if (wish.kind == Kind::kShrink) {
      context_ = engine_.ReserveContext();
      wish.context = context_;
    }
  }
  machine().Call(wish, engine_.clock().Now(), Silence());
  After();
}

void SurvivorCalls::OnControl(int rank, absl::string_view body) {
  machine().OnMessage(rank, body, engine_.clock().Now());
  After();
}

void SurvivorCalls::OnLost(int rank, const absl::Status& why) {
  if (machine_) {
    const int64_t now = engine_.clock().Now();
    Proves(rank, why) ? machine_->OnGone(rank, now) : machine_->OnCut(rank, now);
    After();
  }
}

void SurvivorCalls::OnLeft(int rank) {
  if (machine_) {
    machine_->OnGone(rank, engine_.clock().Now());
    After();
  }
}

Deadline SurvivorCalls::next_tick() const {
  const Deadline machine = machine_ ? machine_->next_tick() : Deadline::Never();
  return work_ ? std::min(machine, Deadline::From(work_->started_ns_, work_->timeout_ns_))
               : machine;
}

void SurvivorCalls::OnTick(int64_t now_ns) {
  if (machine_ && machine_->next_tick().Passed(now_ns)) {
    for (int r = 0; r < peers_.size(); ++r) {
      const Endpoint* const endpoint = peers_.endpoint(r);
      const uint64_t received = endpoint == nullptr ? 0 : endpoint->received();
      if (std::exchange(received_[static_cast<size_t>(r)], received) != received) {
        machine_->OnHeard(r, now_ns);
      }
    }
    machine_->OnTick(now_ns);
    After();
  }
  if (work_ && Deadline::From(work_->started_ns_, work_->timeout_ns_).Passed(now_ns)) {
    End(TimedOut(now_ns));
  }
}

void SurvivorCalls::Close(const absl::Status& why) {
  closed_.Update(why);
  if (work_) {
    End(why);
  }
  if (untaken_ && untaken_->next != nullptr) {
    shell_.GiveUp(*untaken_->next, "had timed out in the shrink that made it");
  }
  untaken_.reset();
  ReleaseContext();
}

// ---- Results

void SurvivorCalls::After() {
  std::vector<Survivors::Message> messages = machine_->TakeMessages();
  for (const Survivors::Message& message : messages) {
    peers_.Send(message.to, ControlKind::kSurvivors, message.text);
  }
  if (!messages.empty()) {
    engine_.seat().NeedFlush();
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
  Result result{kind_, Wrong(decision, seen_ - 1), decision.flag, nullptr};
  kind_ = Kind::kShrink;
  if (result.kind == Kind::kShrink && result.status.ok()) {
    std::vector<std::pair<int, Context>> members;
    for (const int r : decision.members.ranks()) {
      members.emplace_back(r, decision.contexts[members.size()]);
    }
    result.next = shell_.MakeNext(next_name_, members);
    context_ = 0;
    engine_.causes().GoneOn();
  }
  ReleaseContext();
  if (work_ && begun_) {
    Give(std::move(result));
    return;
  }
  if (result.kind == Kind::kShrink || !untaken_) {
    untaken_ = std::move(result);
  }
  if (work_) {
    Begin();  // work_ has waited for this decision of an earlier call
  }
}

void SurvivorCalls::TakeEnd() {
  ended_ = true;
  ReleaseContext();
  const absl::Status why = Stale();
  shell_.EndAsStale(why);
  if (work_) {
    End(why);
  }
}

void SurvivorCalls::Give(Result result) {
  work_->flag_ = result.flag;
  work_->next_ = std::move(result.next);
  End(result.status);
}

void SurvivorCalls::End(const absl::Status& why) {
  engine_.seat().CountOpenWork(-1);
  RefPtr<SurvivorWork> work = std::exchange(work_, {});
  work->Finish(why);
}

void SurvivorCalls::ReleaseContext() {
  if (context_ != 0) {
    engine_.ReleaseContext(std::exchange(context_, Context{0}));
  }
}

// ---- Words

absl::Status SurvivorCalls::Say(absl::StatusCode code, absl::string_view operation, uint32_t number,
                                int guilty, Phase phase, const std::string& text) const {
  Blame blame = words_.BlameFor(nullptr, guilty, phase);
  blame.operation = std::string(operation);
  blame.sequence = number;
  if (work_) {
    blame.elapsed_ns = engine_.clock().Now() - work_->started_ns_;
    blame.deadline_ns = work_->timeout_ns_;
  }
  return WithBlame(
      absl::Status(code, absl::StrCat(operation, " #", number, " of ", name_, ": ", text)), blame);
}

absl::Status SurvivorCalls::TimedOut(int64_t now_ns) const {
  const std::vector<int> absent = machine_->knowledge().not_called();
  const int leader = machine_->knowledge().leader();
  const int guilty = !absent.empty() ? absent[0] : leader == peers_.rank() ? -1 : leader;
  const std::string why =
      !absent.empty() ? absl::StrCat(FailureWords::RankList(absent), " did not make the call")
      : guilty < 0    ? std::string("the other ranks wait for ranks that do not reach this one")
                      : absl::StrCat(peers_.NameOf(guilty), " does not decide");
  absl::Status status =
      Say(absl::StatusCode::kDeadlineExceeded, work_->operation(), machine_->number(), guilty,
          Phase::kTransfer,
          absl::StrCat("timed out on rank ", peers_.rank(), " after ",
                       Seconds(now_ns - work_->started_ns_), " (deadline ",
                       Seconds(work_->timeout_ns_), "): ", why, "; the call may be repeated"));
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
