#include "lib/train/edit/round_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace entrain {

// Returns a job that runs `body`, adds its time to sync_ns_, and reports its error to all ranks.
Worker::Job RoundRunner::Timed(Worker::Job body) {
  return [this, body = std::move(body)]() mutable {
    uint64_t spent = 0;
    absl::Status status;
    {
      const AddTime stopwatch(&spent);
      status = Persist(body);
    }
    sync_ns_.fetch_add(spent, std::memory_order_relaxed);
    return Finish(std::move(status));
  };
}

absl::Status RoundRunner::Finish(absl::Status status) {
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("edit: exchange ", results_.syncs() + 1));
    Fail(status);
  }
  return status;
}

bool RoundRunner::MustRecover(bool closing) const {
  return recovery_ != nullptr && error_.status().ok() && !recovery_->Needed(closing).ok();
}

// Runs `body`. After each loss, runs the recovery and then `body` again.
absl::Status RoundRunner::Persist(Worker::Job& body) {
  absl::Status status = body();
  while (!status.ok() && MustRecover(/*closing=*/true)) {
    ENTRAIN_RETURN_IF_ERROR(Recover());
    status = body();
  }
  return status;
}

// Finishes the round under way without the lost ranks, as far as this is possible.
absl::Status RoundRunner::Recover() {
  recovery_->EndCalls();
  return recovery_->joint_calls().Recover([this] {
    const absl::MutexLock lock(&late_mutex_);
    return recovery_->Run(late_ != nullptr ? late_.get() : round_.get());
  });
}

absl::Status RoundRunner::Watch() {
  absl::Status status;
  if (MustRecover(/*closing=*/false)) {
    status = Recover();
  }
  if (status.ok() && closer_ != nullptr && error_.status().ok()) {
    Worker::Job answer = [this] { return AnswerOthers(); };
    status = Persist(answer);
  }
  if (!status.ok()) {
    status = Annotate(status, "edit");
    Fail(status);
  }
  return status;
}

absl::Status RoundRunner::FailTogether(const absl::Status& why) {
  if (recovery_ == nullptr) {
    Fail(Annotate(why, "edit"));
  } else {
    worker_.Wait(worker_.Post(Timed([why] { return why; }))).IgnoreError();
  }
  return error_.Or(why);
}

absl::Status RoundRunner::MakeJointCall(absl::FunctionRef<AllRanks()> everybody,
                                        JointCalls::Attempt attempt, absl::string_view doing,
                                        std::string* result) {
  const auto needed = [this] {
    return recovery_ == nullptr ? absl::OkStatus() : recovery_->Needed();
  };
  // The worker may be in the middle of the recovery, or not know of the loss yet. Its next job runs
  // after the recovery, or runs it.
  const auto recover = [&] { return worker_.Wait(worker_.Post(Timed(needed))); };
  const JointCalls::Call call = {everybody, attempt, needed, recover};
  JointCalls alone;
  JointCalls& calls = recovery_ == nullptr ? alone : recovery_->joint_calls();
  JointCalls::Outcome outcome = calls.Make(results_.rendezvous(), call);
  const absl::Status status = Annotate(outcome.status, absl::StrCat("edit: ", doing));
  if (outcome.broken) {
    Fail(status);
  }
  *result = std::move(outcome.result);
  return status;
}

uint64_t RoundRunner::PostJudge(std::shared_ptr<ExchangeRound> round, int64_t extra_ns) {
  if (closer_ != nullptr) {
    closer_->Arrive(round->standing().flags);
  }
  return worker_.Post(
      Timed([this, round = std::move(round), extra_ns] { return Judge(round, extra_ns); }));
}

uint64_t RoundRunner::PostTurn(std::shared_ptr<ExchangeRound> round) {
  return worker_.Post(Timed([this, round = std::move(round)] { return RunTurn(*round); }));
}

void RoundRunner::PostAdmission() {
  if (admission_ == nullptr) {
    return;
  }
  worker_.Post([this] {
    Worker::Job run = [this] { return Admit(); };
    return Finish(Persist(run));
  });
}

// Admits newcomers after the last round, unless this has been done already.
absl::Status RoundRunner::Admit() {
  if (admission_due_) {
    ENTRAIN_RETURN_IF_ERROR(admission_->Run());
    admission_due_ = false;
  }
  return absl::OkStatus();
}

absl::Status RoundRunner::AwaitOthers() {
  if (recovery_ == nullptr) {
    return absl::OkStatus();
  }
  return worker_.Wait(worker_.Post(Timed([this] { return recovery_->AwaitOthers(); })));
}

void RoundRunner::Seal() {
  Worker::Job seal = Timed([this] { return SealAnchors(); });
  worker_.RunHere([&] { return seal(); }).IgnoreError();  // Fail keeps the error
}

absl::Status RoundRunner::Merge(std::shared_ptr<ExchangeRound> round) {
  ENTRAIN_RETURN_IF_ERROR(worker_.Wait(round->last_job()));
  Worker::Job merge = Timed([this, &round] {
    if (round->exchanges()) {
      exchange_.snapshots().Merge(round->order());
    } else {
      exchange_.snapshots().Drop(round->order());
    }
    round->SetMerged();
    return absl::OkStatus();
  });
  return worker_.RunHere([&] { return merge(); });
}

absl::Status RoundRunner::Judge(const std::shared_ptr<ExchangeRound>& round, int64_t extra_ns) {
  round_ = round;
  if (round->finished() < 0) {  // false only if a recovery has received the result
    return closer_ == nullptr ? JudgeOnTime(*round, extra_ns) : JudgeOrCatchUp(*round, extra_ns);
  }
  if (closer_ != nullptr) {
    closer_->Settle();  // the pending decision was to hold this rendezvous
  }
  return absl::OkStatus();
}

// Makes a round in the order of the paper (arXiv 2412.07210, algorithm 1). A round for which the
// caller waits consists of the same steps. There each step is a job (PostJudge, PostTurn), so that
// the caller can compute a layer when its turn is over.
absl::Status RoundRunner::Make(ExchangeRound& round) {
  if (round.finished() < 0) {                        // otherwise a recovery has received the result
    ENTRAIN_RETURN_IF_ERROR(JudgeOnTime(round, 0));  // norms, weights
  }
  while (!round.arrived()) {
    ENTRAIN_RETURN_IF_ERROR(RunTurn(round));  // of a layer: delta, its mean, the outer step
  }
  return absl::OkStatus();
}

absl::Status RoundRunner::JudgeOnTime(ExchangeRound& round, int64_t extra_ns) {
  if (admission_ != nullptr) {
    admission_->Look();
  }
  if (round.behind()) {
    exchange_.snapshots().Use(round.order());
  }
  const absl::StatusOr<bool> exchanges = exchange_.Judge(round.order(), round.standing(), extra_ns);
  ENTRAIN_RETURN_IF_ERROR(Annotate(exchanges.status(), "rendezvous"));
  round.SetJudged(*exchanges);
  results_.SetRepairs(exchange_.rendezvous().repairs());
  results_.Met(exchange_.rendezvous().table(), round.standing().round);
  // A round of a fragment is behind on those ranks only that have offered it.
  const bool behind = round.behind() && background_ == nullptr;
  admission_due_ = admission_ != nullptr && (round.exchanges() || behind);
  return absl::OkStatus();
}

// ---- Rounds that may be closed without this replica

// Takes part in decisions until this rank's arrival has been answered. The answer is a rendezvous,
// or the take-up of rounds for which this replica was late. After a loss this function is called
// again; a decision that has not been carried out is then still pending.
absl::Status RoundRunner::JudgeOrCatchUp(ExchangeRound& round, int64_t extra_ns) {
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(Annotate(closer_->CheckWait(), "rendezvous"));
    ENTRAIN_ASSIGN_OR_RETURN(const Closing closing, closer_->Tick());
    if (closing.kind == Closing::Kind::kWait) {
      continue;
    }
    if (!AnswersCaller(closing)) {  // other ranks of this replica may not have come
      ENTRAIN_RETURN_IF_ERROR(CarryOutForOthers(closing));
      continue;
    }
    if (closing.kind == Closing::Kind::kTakeUp) {
      const bool was_late = closer_->missed() > 0;
      round.SetMissed(/*dropped=*/was_late &&
                      !exchange_.snapshots().CatchUp(layers_, closer_->missed()));
    } else {
      if (background_ != nullptr) {
        background_->CatchUp();
      }
      round.SetNumber(static_cast<uint64_t>(results_.rendezvous()));
      ENTRAIN_RETURN_IF_ERROR(JudgeOnTime(round, extra_ns));
    }
    closer_->Settle();
    return absl::OkStatus();
  }
}

// Returns true if the caller of this rank waits for the decision.
bool RoundRunner::AnswersCaller(const Closing& closing) const {
  return closing.fragment < 0 && closer_->Includes(closing);
}

// Takes part in one decision. After a round of a fragment, takes part in the next one, too: several
// fragments may be due. A decision about this replica stays pending for the job that the caller has
// posted, or is about to post.
absl::Status RoundRunner::AnswerOthers() {
  while (true) {
    const bool called = closer_->pending() || closer_->Called() || closer_->offers();
    // True if the caller has posted the jobs of a round, or is about to post them.
    const bool busy = round_ != nullptr && late_ == nullptr &&
                      ((round_->exchanges() && !round_->arrived()) || admission_due_);
    if (!called || busy) {
      return absl::OkStatus();
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Closing closing, closer_->Tick());
    if (closing.kind == Closing::Kind::kWait || AnswersCaller(closing)) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(CarryOutForOthers(closing));
    if (closing.fragment < 0) {
      return absl::OkStatus();
    }
  }
}

// Carries out a decision for which the caller of this rank does not wait.
absl::Status RoundRunner::CarryOutForOthers(const Closing& closing) {
  if (closing.kind == Closing::Kind::kClose) {
    ENTRAIN_RETURN_IF_ERROR(RunForOthers(closing));
    ENTRAIN_RETURN_IF_ERROR(Admit());
    late_ = nullptr;
  }
  closer_->Settle();
  return absl::OkStatus();
}

// Runs a round for which the caller does not wait. If late_ is set, continues this round after a
// loss.
absl::Status RoundRunner::RunForOthers(const Closing& closing) {
  const absl::MutexLock lock(&late_mutex_);
  const int64_t began_ns = Clock::Real().Now();
  if (late_ == nullptr) {
    ENTRAIN_RETURN_IF_ERROR(BeginForOthers(closing));
  }
  ENTRAIN_RETURN_IF_ERROR(Make(*late_));
  if (closing.fragment >= 0) {
    background_->EndRound(closing.fragment);
    const int64_t took_ns = Clock::Real().Now() - began_ns;
    background_ns_ = background_ns_ == 0 ? took_ns : (3 * background_ns_ + took_ns) / 4;
    closer_->SetRoundTime(background_ns_);
  }
  return absl::OkStatus();
}

absl::Status RoundRunner::BeginForOthers(const Closing& closing) {
  const absl::StatusOr<Standing> last = results_.StandingOf(exchange_.members().me());
  const Standing standing = {.round = static_cast<uint64_t>(results_.rendezvous()),
                             .steps = last.ok() ? last->steps : 0};
  if (closing.fragment >= 0) {
    ENTRAIN_ASSIGN_OR_RETURN(
        late_, background_->BeginRound(closing.fragment, closer_->Includes(closing), standing,
                                       exchange_.in_flight()));
  } else {
    ENTRAIN_RETURN_IF_ERROR(exchange_.snapshots().BeginLate(layers_));
    late_ =
        std::make_unique<ExchangeRound>(layers_, standing, /*behind=*/false, exchange_.in_flight());
  }
  late_->Allow(late_->last_turn());
  if (!late_->behind()) {
    results_.Missed();
  }
  return absl::OkStatus();
}

absl::StatusOr<int> MakeTurn(ExchangeRound& round, Exchange& exchange) {
  const int layer = round.BeginTurn();
  if (layer == ExchangeRound::kNoLayer) {
    return layer;
  }
  const auto named = [](int l, const absl::Status& status) {
    return Annotate(status, absl::StrCat("layer ", l));
  };
  if (!round.has_result()) {
    const auto bytes = [&exchange](int l) { return exchange.DeltaBytes(l); };
    for (int next = round.NextToBegin(bytes); next != ExchangeRound::kNoLayer;
         next = round.NextToBegin(bytes)) {
      ENTRAIN_RETURN_IF_ERROR(named(next, exchange.Begin(next)));
      round.Begun();
    }
    ENTRAIN_RETURN_IF_ERROR(named(layer, exchange.Finish(layer)));
    round.Finished();
  }
  round.EndTurn();
  return layer;
}

absl::Status RoundRunner::RunTurn(ExchangeRound& round) {
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  ENTRAIN_ASSIGN_OR_RETURN(const int layer, MakeTurn(round, exchange_));
  if (layer == ExchangeRound::kNoLayer) {
    return absl::OkStatus();
  }
  const LayerReport& report = exchange_.verdicts().report(layer);
  results_.LayerOver(report.accepted, report.rolled_back);
  if (round.arrived()) {
    exchange_.FreeBuffers();
    results_.ExchangeOver(round.begun(), exchange_.anchors().checksum());
  }
  return absl::OkStatus();
}

absl::Status RoundRunner::SealAnchors() {
  exchange_.SealAnchors();
  results_.SetAnchorChecksum(exchange_.anchors().checksum());
  return absl::OkStatus();
}

void RoundRunner::Fail(const absl::Status& why) {
  // Ends the communicators of both groups, so that no rank waits for this rank. This must come
  // before Note: the caller may exit as soon as it gets the error.
  const ExchangeGroups groups = exchange_.members().groups();
  for (const auto& comm : {groups.model, groups.sync}) {
    if (comm != nullptr) {
      comm->EndWith(why);
    }
  }
  if (recovery_ != nullptr) {
    recovery_->End(why);
  }
  if (closer_ != nullptr) {
    closer_->End(why);
  }
  error_.Note(why);
}

}  // namespace entrain
