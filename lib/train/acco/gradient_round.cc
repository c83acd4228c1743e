#include "lib/train/acco/gradient_round.h"

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco/round_votes.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Returns the learning rate of the round that follows `progress`. Calls the caller's schedule.
absl::StatusOr<double> RateOfRound(const ChannelOptions& options, const ChannelProgress& progress) {
  const int64_t at = progress.In(options.schedule_unit);
  double lr = 0;
  ENTRAIN_RETURN_IF_ERROR(
      Worker::CallersFunction("the schedule of rates", [&] { lr = RateAt(options, at); }));
  if (!(lr >= 0 && std::isfinite(lr))) {
    return absl::AbortedError(
        absl::StrCat("the schedule of rates returned ", lr, " at progress ", at));
  }
  return lr;
}

}  // namespace

GradientRound::GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options)
    : options_(options), buffers_(options), ranks_(std::move(comm), options), state_(options) {}

void GradientRound::Doing(const char* what) const {
  Worker::Doing(absl::StrCat("round ", state_.progress().rounds() + 1, ": ", what));
}

absl::Status GradientRound::RunCall(const char* what, Call call) {
  call.options = DataOptions();
  return Annotate(ranks_.cut().comm()->Run(call), what);
}

absl::Status GradientRound::Run(RoundKind kind, const RoundCounts& mine) {
  const int64_t before = state_.progress().rounds();
  absl::Status status = MakeWhole(kind, mine);
  while (ranks_.Answers(status)) {
    status = Recover();
    if (!status.ok()) {
      break;
    }
    status = state_.progress().rounds() > before ? Close() : MakeWhole(kind, mine);
  }
  if (ranks_.recovers() && state_.phase() == RoundPhase::kFinished && state_.EndsRun()) {
    return absl::OkStatus();  // the other ranks may have left
  }
  return Annotate(status, absl::StrCat("acco: round ", state_.number()));
}

// Handles newcomers, and then runs the round. Admitted newcomers take part in the round.
absl::Status GradientRound::MakeWhole(RoundKind kind, const RoundCounts& mine) {
  if (ChannelAdmission* const admission = ranks_.admission(); admission != nullptr) {
    const ChannelShare share = {.totals = totals(),
                                .next_number = ranks_.next_number(),
                                .cut = &ranks_.cut(),
                                .params = buffers_.params()};
    ENTRAIN_ASSIGN_OR_RETURN(AdmittedRanks admitted,
                             admission->Attend(state_.result().committed, share));
    if (admitted.cut != nullptr) {
      Enlarge(admitted.enlarged, std::move(admitted.cut));
      admission->WelcomeNewcomers();
    }
  }
  return Make(kind, mine);
}

absl::Status GradientRound::Make(RoundKind kind, const RoundCounts& mine) {
  ENTRAIN_RETURN_IF_ERROR(AddUp(kind, mine));
  ENTRAIN_RETURN_IF_ERROR(Vote());
  ENTRAIN_RETURN_IF_ERROR(MakeStep());
  ENTRAIN_RETURN_IF_ERROR(GatherParameters());
  return Close();
}

absl::Status GradientRound::AddUp(RoundKind kind, const RoundCounts& mine) {
  state_.Begin(kind);
  RoundOutcome now;
  ENTRAIN_RETURN_IF_ERROR(ShareCounts(mine, &now.counts));
  now.result = {.committed = Commits(state_.kind()),
                .microbatches = now.counts.microbatches,
                .ranks = ranks_.cut().comm()->size(),
                .joins = ranks_.joins()};
  ENTRAIN_ASSIGN_OR_RETURN(now.result.lr, RateOfRound(options_, state_.progress()));
  if (Votes()) {
    Doing("copies");
    ENTRAIN_RETURN_IF_ERROR(ranks_.cut().ExchangeSums(buffers_.com()));
    state_.Reach(RoundPhase::kReady);
  }
  state_.SetOutcome(now);
  return absl::OkStatus();
}

absl::Status GradientRound::MakeStep() {
  if (Votes()) {
    state_.Reach(RoundPhase::kDecided);
  }
  state_.Commit();
  Doing("step");
  return Step(Sum(), state_.outcome().result.lr);
}

GradientSum GradientRound::Sum() const {
  const RoundResult& now = state_.outcome().result;
  return {buffers_.com(), now.microbatches, now.clip_factor};
}

// In an estimate, the sum is A. In the commit that follows the estimate, the sum is A + B.
absl::Status GradientRound::Step(const GradientSum& sum, double lr) {
  const int64_t commits = state_.progress().commits();
  ShardStep& shard = ranks_.cut().own();
  switch (state_.kind()) {
    case RoundKind::kEstimate:
      return shard.Estimate(sum, {commits + 1, lr});
    case RoundKind::kPredict:
      // At the end of the run all ranks get the parameters themselves, not a prediction.
      return state_.progress().Done() ? shard.Commit(sum, {commits, lr})
                                      : shard.Predict(sum, {commits, lr});
    case RoundKind::kCommit:
      break;
  }
  return shard.Commit(sum, {commits, lr});
}

// Makes the left neighbour's step on the copy of its shard.
absl::Status GradientRound::StepCopy() {
  return ranks_.cut().CommitCopy(Sum(), {state_.progress().commits(), state_.outcome().result.lr});
}

// At the end of the run, waits until all ranks have finished the last round. A rank that has not
// finished the round may need the others.
absl::Status GradientRound::Close() {
  if (!state_.EndsRun()) {
    return absl::OkStatus();
  }
  ranks_.AwaitNewcomers();
  ranks_.DropNewcomers("the run is over");
  if (!ranks_.recovers()) {
    return absl::OkStatus();
  }
  Doing("end");
  return Annotate(ranks_.cut().comm()->Barrier(TimedCall(options_.timeout_ns, -1, true)), "end");
}

// Sums the counts during the reduce-scatter of the gradients.
absl::Status GradientRound::ShareCounts(const RoundCounts& mine, RoundCounts* all) {
  struct Numbers {
    RoundCounts counts;
    AdmissionCounts newcomers;
  };
  static_assert(sizeof(Numbers) == 6 * sizeof(int64_t));
  ChannelAdmission* const admission = ranks_.admission();
  Numbers own{mine, admission == nullptr ? AdmissionCounts() : admission->Tell()}, sums;
  Call counts;
  counts.kind = CallKind::kAllReduce;
  counts.dtype = DType::kI64;
  counts.count = admission == nullptr ? 3 : 6;
  const int64_t bytes = counts.count * static_cast<int64_t>(sizeof(int64_t));
  counts.in = {&own, bytes};
  counts.out = {&sums, bytes};
  counts.options = TimedCall(options_.timeout_ns, kCountsTag, true);
  Doing("counts and gradients");
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> shared, ranks_.cut().comm()->Start(counts));
  const absl::Status status = RunCall("gradients", buffers_.Gradients(layer()));
  shared->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  ENTRAIN_RETURN_IF_ERROR(status);
  ENTRAIN_RETURN_IF_ERROR(Annotate(shared->status(), "counts"));
  *all = sums.counts;
  if (admission != nullptr) {
    admission->Hear(sums.newcomers);
  }
  return absl::OkStatus();
}

absl::Status GradientRound::Vote() {
  ChannelCut& cut = ranks_.cut();
  const bool clips = options_.clip_norm > 0;
  const RoundVotes votes(clips, Votes());
  if (!votes.any()) {
    return absl::OkStatus();
  }
  const double square = clips ? cut.own().SumOfSquares(buffers_.com()) : 0;
  const std::vector<uint64_t> mine = votes.Words(square, cut.sums());
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(cut.comm()->size()));
  Doing(votes.name());
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(cut.comm()->AllGather(mine.data(), all.data(), static_cast<int64_t>(mine.size()),
                                     DType::kI64, DataOptions()),
               votes.name()));
  if (clips) {
    const double norm = votes.Norm(all, state_.outcome().result.microbatches);
    state_.Clip(norm, ClipFactor(norm, options_.clip_norm));
  }
  return Votes() && cut.has_copy() ? votes.CheckCopies(all, state_.progress().commits())
                                   : absl::OkStatus();
}

absl::Status GradientRound::GatherParameters() {
  Doing("parameters");
  absl::Status status;
  if (Votes() && ranks_.cut().has_copy()) {
    Call gather = buffers_.Parameters(layer());
    gather.options = DataOptions();
    const auto work = ranks_.cut().comm()->Start(gather);
    status = StepCopy();  // even if the call has failed, because the commit is decided
    if (work.ok()) {
      (*work)->Wait(Deadline::Never(), true);  // the call has a deadline of its own
    }
    status.Update(Annotate(work.ok() ? (*work)->status() : work.status(), "parameters"));
  } else {
    status = RunCall("parameters", buffers_.Parameters(layer()));
  }
  if (status.ok()) {
    state_.Finish();
  }
  return status;
}

absl::Status GradientRound::Allocate() {
  const std::shared_ptr<Communicator> comm = ranks_.comm();
  ENTRAIN_RETURN_IF_ERROR(buffers_.Allocate(comm->size()));
  ENTRAIN_RETURN_IF_ERROR(ranks_.Start());
  ENTRAIN_RETURN_IF_ERROR(
      comm->Broadcast(options_.params, options_.count, options_.params_dtype, 0, DataOptions()));
  ranks_.cut().Start(static_cast<const std::byte*>(options_.params));
  return absl::OkStatus();
}

absl::Status GradientRound::AllocateForNewcomer() {
  return buffers_.Allocate(kMostChannelRanks);
}

absl::Status GradientRound::MastersToCom() {
  ranks_.cut().own().WriteTheta(buffers_.com());
  Call gather = buffers_.Parameters(layer());
  gather.options = DataOptions();
  return ranks_.cut().comm()->Run(gather);
}

absl::Status GradientRound::PublishMasters() {
  ENTRAIN_RETURN_IF_ERROR(MastersToCom());
  buffers_.Publish();
  return absl::OkStatus();
}

// ---- Newcomers ---------------------------------------------------------------------------------

ChannelTotals GradientRound::totals() const {
  ChannelTotals all = state_.Totals();
  all.joins = ranks_.joins();
  all.cuts = ranks_.cuts();
  return all;
}

void GradientRound::Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut) {
  ranks_.Enlarge(enlarged, std::move(cut));
  // ChannelBuffers::Take has padded the gradients for the old partition. The new one has other
  // padding.
  buffers_.ClearPadding(layer());
}

void GradientRound::Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
                           const ChannelTotals& totals) {
  ranks_.Become(enlarged, std::move(cut), totals);
  state_.GoOn(totals);
}

// ---- After a loss ------------------------------------------------------------------------------

absl::Status GradientRound::Recover() {
  ranks_.DropNewcomers("a member was lost");
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(ranks_.Shrink(state_.number()));
    const absl::Status status = GoOn();
    if (status.ok() || ranks_.Lost().ok() || status.code() == absl::StatusCode::kDataLoss) {
      return status;
    }
  }
}

absl::Status GradientRound::GoOn() {
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<ChannelPlace> places, ranks_.GatherPlaces(place()));
  ENTRAIN_ASSIGN_OR_RETURN(const CommitPlan plan, PlanCommit(places));
  ENTRAIN_RETURN_IF_ERROR(
      ranks_.joint_calls().Settle(*ranks_.comm(), state_.progress().rounds(), options_.timeout_ns));
  if (plan.take_cut) {
    ranks_.TakeCut();
  }
  if (plan.decided >= 0) {
    ENTRAIN_RETURN_IF_ERROR(ShareOutcome(plan));
  }
  ENTRAIN_RETURN_IF_ERROR(CutAnew());
  if (plan.finished >= 0) {
    return ShareParameters(plan.finished, plan.rounds);
  }
  if (plan.decided >= 0) {
    Worker::Doing("after a loss: gathering the masters");
    ENTRAIN_RETURN_IF_ERROR(MastersToCom());
    state_.Finish();
  }
  return absl::OkStatus();
}

CallOptions GradientRound::AfterLoss(const char* what) const {
  const CallOptions options = TimedCall(options_.timeout_ns, -1, true);
  Worker::Doing(absl::StrCat("after a loss: ", what), options.timeout_ns);
  return options;
}

// Collective. Sends the outcome of the round to all ranks. If the round is a commit, each rank that
// has not made its step makes it.
absl::Status GradientRound::ShareOutcome(const CommitPlan& plan) {
  RoundOutcome outcome = state_.outcome();
  static_assert(std::is_trivially_copyable_v<RoundOutcome>);
  ENTRAIN_RETURN_IF_ERROR(ranks_.comm()->Broadcast(&outcome, sizeof(outcome), DType::kU8,
                                                   plan.decided, AfterLoss("the votes")));
  return Decide(plan.rounds, outcome);
}

// Collective. Makes a new partition for the remaining ranks.
absl::Status GradientRound::CutAnew() {
  const std::vector<int> left = ranks_.numbers();
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<int> holders, HoldersOf(ranks_.cut().members(), left));
  ENTRAIN_RETURN_IF_ERROR(ranks_.PrepareCut(ranks_.comm(), left, holders));
  ENTRAIN_RETURN_IF_ERROR(ranks_.comm()->Barrier(AfterLoss("the votes for the new cut")));
  ranks_.TakeCut();
  return absl::OkStatus();
}

ChannelPlace GradientRound::place() const {
  return {.cuts = ranks_.cuts(),
          .prepared = ranks_.prepared(),
          .rounds = state_.progress().rounds(),
          .commits = Commits(state_.kind()) ? 1 : 0,
          .phase = state_.phase()};
}

absl::Status GradientRound::Decide(int64_t rounds, const RoundOutcome& outcome) {
  if (state_.progress().rounds() > rounds || state_.phase() == RoundPhase::kDecided) {
    return absl::OkStatus();
  }
  state_.SetOutcome(outcome);
  if (!Commits(state_.kind())) {
    return absl::OkStatus();  // an estimate changes nothing but the parameters
  }
  ENTRAIN_RETURN_IF_ERROR(MakeStep());
  return ranks_.cut().has_copy() ? StepCopy() : absl::OkStatus();
}

// Collective. Rank `root` has finished the round that follows `rounds` rounds. A rank that has not
// finished this round receives the parameters from `root`, and then finishes the round.
absl::Status GradientRound::ShareParameters(int root, int64_t rounds) {
  const bool lacks = state_.progress().rounds() == rounds;
  // A rank that is already in the next round has installed the parameters.
  const bool installed =
      ranks_.cut().comm()->rank() == root && state_.phase() != RoundPhase::kFinished;
  void* const params = installed ? options_.params : buffers_.com();
  ENTRAIN_RETURN_IF_ERROR(ranks_.cut().comm()->Broadcast(
      params, options_.count, options_.params_dtype, root, AfterLoss("parameters of the round")));
  if (lacks) {
    state_.Finish();
  }
  return absl::OkStatus();
}

}  // namespace entrain
