// The functions of LayerSync that begin rounds and merge them, in the caller's thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/train/edit/layer_sync.h"

namespace entrain {

absl::Status LayerSync::FetchOnce() {
  if (options_.fetch == nullptr || std::exchange(fetched_, true)) {
    return absl::OkStatus();
  }
  const int32_t returned = options_.fetch(options_.fetch_user);
  return returned == 0 ? absl::OkStatus()
                       : absl::AbortedError(absl::StrCat("the function fetch returned ", returned));
}

// As FetchOnce. An error is told to the other ranks, which may be waiting for this rank.
absl::Status LayerSync::Fetch() {
  const absl::Status fetched = FetchOnce();
  return fetched.ok() ? fetched : runner_->FailTogether(fetched);
}

absl::StatusOr<bool> LayerSync::StartIfDue() {
  fetched_ = false;
  TakeBackMissed();
  BeginBackground();
  if (membership_.closer() != nullptr &&
      counter_.last_rendezvous_step() >= 0) {  // anchors were made or loaded
    membership_.closer()->SetReady();
  }
  ENTRAIN_RETURN_IF_ERROR(MergeSettled(/*all=*/counter_.requested()));
  if (options_.use_async && !behind_.empty()) {
    return false;
  }
  const absl::StatusOr<bool> due = trigger_->Due(counter_.Moment());
  if (!due.ok()) {
    return runner_->FailTogether(due.status());  // another rank may be waiting for this rank
  }
  const bool insists = counter_.TakeRequest();
  if (!*due) {
    // A fragment that was offered before may have a result now.
    return membership_.background() != nullptr && counter_.last_rendezvous_step() >= 0
               ? OfferIfDue()
               : false;
  }
  if (counter_.last_rendezvous_step() < 0) {
    ENTRAIN_RETURN_IF_ERROR(Annotate(StartFirst(), "edit"));
    return false;
  }
  if (membership_.background() != nullptr && !insists) {
    return OfferIfDue();
  }
  counter_.Wish(insists ? kInsist : 0);
  std::vector<int> layers =
      insists || options_.use_async ? schedule_->all() : schedule_->Due(counter_.since_warmup());
  if (membership_.closer() != nullptr && insists) {
    return MeetEverybody(layers);
  }
  if (options_.overlap_steps > 0 && !insists) {
    ENTRAIN_RETURN_IF_ERROR(StartBehind(std::move(layers)));
    return true;
  }
  ENTRAIN_RETURN_IF_ERROR(StartExchange(std::move(layers)));
  if (options_.use_async) {
    return Meet(0);
  }
  runner_->PostJudge(round_, 0);
  gates_->Begin(round_, [this] { return runner_->PostTurn(round_); });
  AdmitAfterStep();
  return true;
}

// Runs instead of the first exchange: at the end of warm-up, or at the first step if there is no
// warm-up. At this time all replicas have equal parameters, so nothing is exchanged.
absl::Status LayerSync::StartFirst() {
  ENTRAIN_RETURN_IF_ERROR(counter_.CheckMayBegin());
  ENTRAIN_RETURN_IF_ERROR(Fetch());
  if (!options_.plain()) {
    ENTRAIN_RETURN_IF_ERROR(worker_->RunHere([this] { return exchange_.CreateAnchors(); }));
  }
  counter_.Begin();
  trigger_->Met();
  results_.Begin(counter_.step());
  runner_->Seal();
  if (membership_.closer() != nullptr) {
    membership_.closer()->SetReady();
  }
  BeginBackground();
  return absl::OkStatus();
}

// If the counts have begun anew, fragments do so too.
void LayerSync::BeginBackground() {
  if (membership_.background() != nullptr &&
      std::exchange(background_began_, counter_.beginnings()) != counter_.beginnings()) {
    membership_.background()->Begin(TrainedSoFar());
  }
}

// Merges the rounds of fragments that are over, and offers the fragments that are due.
absl::StatusOr<bool> LayerSync::OfferIfDue() {
  BackgroundRounds& background = *membership_.background();
  const KernelThreads::Scope scope(&threads_);
  const BackgroundRounds::Trained now = TrainedSoFar();
  const int64_t now_ns = Clock::Real().Now();
  const int64_t took_ns = step_began_ns_ > 0 ? now_ns - step_began_ns_ : 0;
  step_ns_ = step_ns_ > 0 ? (7 * step_ns_ + took_ns) / 8 : took_ns;
  step_began_ns_ = now_ns;
  CountMissed();
  const absl::StatusOr<std::vector<bool>> mergeable = background.Mergeable();
  if (!mergeable.ok()) {
    return runner_->FailTogether(mergeable.status());  // another rank may be waiting for this rank
  }
  if (std::find(mergeable->begin(), mergeable->end(), true) != mergeable->end()) {
    ENTRAIN_RETURN_IF_ERROR(Fetch());
    // A layer that was gathered before would keep its old parameters.
    ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
    if (exchange_.members().model() == nullptr) {
      background.Merge(now, *mergeable);
    } else {
      const absl::MutexLock lock(&runner_->between_late_rounds());
      background.Merge(now, *mergeable);
    }
  }
  const int64_t due_ns = now_ns + options_.overlap_steps * step_ns_;
  const absl::StatusOr<bool> offered = background.Offer(
      now, counter_.since_warmup(), [this] { return FetchOnce(); },
      [this] { return counter_.TakeNews(); }, due_ns);
  if (absl::IsAborted(offered.status())) {
    return runner_->FailTogether(offered.status());
  }
  return offered.ok() ? offered : absl::StatusOr<bool>(Annotate(offered.status(), "edit"));
}

// As StartExchange, if there are rounds that no replica waits for: first takes back the offers of
// fragments, and merges what has come.
absl::Status LayerSync::StartWithEverybody(std::vector<int> layers) {
  if (membership_.background() == nullptr) {
    return StartExchange(std::move(layers));
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  ENTRAIN_RETURN_IF_ERROR(Fetch());
  Standing standing = counter_.TakeStanding(schedule_->all());
  {
    const absl::MutexLock lock(&runner_->between_late_rounds());  // so no round is under way
    membership_.background()->Settle(TrainedSoFar(), &standing);
  }
  round_ = std::make_shared<ExchangeRound>(schedule_->all(), standing, /*behind=*/false,
                                           exchange_.in_flight());
  membership_.background()->Begin(TrainedSoFar());
  return absl::OkStatus();
}

std::shared_ptr<ExchangeRound> LayerSync::NewRound(std::vector<int> layers, bool behind) {
  const Standing standing = counter_.TakeStanding(layers);
  return std::make_shared<ExchangeRound>(std::move(layers), standing, behind,
                                         exchange_.in_flight());
}

// Makes a round that does not overlap with further steps. Layers wait for it.
absl::Status LayerSync::StartExchange(std::vector<int> layers) {
  // A layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  ENTRAIN_RETURN_IF_ERROR(Fetch());
  round_ = NewRound(std::move(layers), /*behind=*/false);
  return absl::OkStatus();
}

// Holds the rendezvous of round_ and waits for it. If the replicas exchange, starts the exchange
// and returns true.
absl::StatusOr<bool> LayerSync::Meet(int64_t extra_ns) {
  ENTRAIN_RETURN_IF_ERROR(worker_->Wait(runner_->PostJudge(round_, extra_ns)));
  trigger_->Met();
  CountMissed();
  if (round_->missed()) {
    TakeBackMissed();
    return false;
  }
  if (!round_->exchanges()) {
    counter_.TakeBack(round_->standing());
    return false;
  }
  gates_->Begin(round_, [this] { return runner_->PostTurn(round_); });
  AdmitAfterStep();
  return true;
}

// Newcomers are admitted when the step of the exchange is over, because until then the caller may
// save: a save is a call of all members, and must not meet an admission. With quorum or
// round_deadline the workers must not wait for the caller, so they admit at once.
void LayerSync::AdmitAfterStep() {
  admission_owed_ = true;
  if (membership_.closer() != nullptr) {
    AdmitNow();
  }
}

void LayerSync::AdmitNow() {
  if (std::exchange(admission_owed_, false)) {
    runner_->PostAdmission();
  }
}

// Holds a rendezvous in which all replicas take part. If this replica was late for rounds, it first
// takes over their results, and then comes to the rendezvous again.
absl::StatusOr<bool> LayerSync::MeetEverybody(const std::vector<int>& layers) {
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(StartWithEverybody(layers));
    ENTRAIN_ASSIGN_OR_RETURN(const bool exchanges, Meet(0));
    if (round_ != nullptr) {
      return exchanges;
    }
    counter_.Wish(kInsist);
  }
}

// If this replica's last arrival led to no rendezvous, puts its counts back, so that the next
// rendezvous includes them. The caller has waited for the layers since that arrival, so the jobs of
// the round are over.
void LayerSync::TakeBackMissed() {
  if (membership_.closer() != nullptr && round_ != nullptr && round_->missed()) {
    counter_.TakeBackUnsent(round_->standing(), round_->dropped());
    round_ = nullptr;
  }
}

// Updates the number of rendezvous. This number includes the rounds for which this replica was
// late.
void LayerSync::CountMissed() {
  if (membership_.closer() != nullptr) {
    counter_.SetRendezvous(results_.rendezvous());
  }
}

absl::Status LayerSync::StartBehind(std::vector<int> layers) {
  // With kRestart, a layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  ENTRAIN_RETURN_IF_ERROR(Fetch());
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(worker_->RunHere([&] { return exchange_.snapshots().Take(layers); }), "edit"));
  const std::shared_ptr<ExchangeRound> round = NewRound(std::move(layers), /*behind=*/true);
  round->Allow(round->last_turn());
  runner_->PostJudge(round, 0);
  for (int turn = 0; turn <= round->last_turn(); ++turn) {
    round->set_last_job(runner_->PostTurn(round));
  }
  AdmitAfterStep();
  behind_.Add(round);
  return absl::OkStatus();
}

// Merges the rounds in behind_ that are due at this step. With `all`, merges all rounds in behind_.
absl::Status LayerSync::MergeSettled(bool all) {
  while (!behind_.empty()) {
    const ExchangeRound& first = *behind_.first();
    const absl::StatusOr<bool> settled = all ? true
                                             : trigger_->Settled({.step = counter_.step(),
                                                                  .last_sync_step = first.begun(),
                                                                  .arrived = first.arrived()});
    if (!settled.ok()) {
      return runner_->FailTogether(settled.status());
    }
    if (!*settled) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(Settle());
  }
  return absl::OkStatus();
}

// Merges the first round in behind_.
absl::Status LayerSync::Settle() {
  const std::shared_ptr<ExchangeRound> round = behind_.first();
  // A layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  if (options_.use_async) {  // only the rendezvous decides whether there is an exchange
    ENTRAIN_RETURN_IF_ERROR(worker_->Wait(round->last_job()));
  }
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  ENTRAIN_RETURN_IF_ERROR(Fetch());
  ENTRAIN_RETURN_IF_ERROR(error_.Or(Annotate(runner_->Merge(round), "edit")));
  behind_.RemoveFirst();
  trigger_->Met();
  if (options_.overlap_merge == OverlapMerge::kMix) {
    counter_.Keep(round->order());
  }
  if (options_.use_async && !round->exchanges()) {
    counter_.TakeBack(round->standing());
  }
  return absl::OkStatus();
}

absl::Status LayerSync::Leave() {
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  state_->Move();
  fetched_ = false;
  const int without = gates_->FirstWithoutWait();
  if (!counter_.left() && without >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: leave: nobody has waited for the exchange of layer ", without));
  }
  TakeBackMissed();
  ENTRAIN_RETURN_IF_ERROR(counter_.CheckMayLeave());
  if (counter_.last_rendezvous_step() < 0) {  // the run has ended with warm-up
    ENTRAIN_RETURN_IF_ERROR(Annotate(StartFirst(), "edit: leave"));
  }
  counter_.Leave();
  AdmitNow();
  const AddTime stopwatch(&exposed_ns_);
  bool all = false;
  while (!all) {
    ENTRAIN_RETURN_IF_ERROR(StayForRound(&all));
  }
  return runner_->AwaitOthers();
}

// Takes part in one more rendezvous with the replicas that still train. In A-EDiT each of these
// replicas comes only when its own interval is over.
absl::Status LayerSync::StayForRound(bool* all) {
  ENTRAIN_RETURN_IF_ERROR(MergeSettled(/*all=*/true));
  ENTRAIN_RETURN_IF_ERROR(StartWithEverybody(counter_.LeftOver()));
  absl::StatusOr<int64_t> extra_ns = 0;
  if (options_.use_async) {
    extra_ns = options_.IntervalNs(counter_.rendezvous(), counter_.since_warmup());
    if (!extra_ns.ok()) {
      return runner_->FailTogether(extra_ns.status());  // the others wait for this rank
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(const bool exchanges, Meet(*extra_ns));
  if (exchanges) {
    ENTRAIN_RETURN_IF_ERROR(gates_->Hold(round_->order().back()));
    ENTRAIN_RETURN_IF_ERROR(worker_->Drain());
  }
  *all = round_ != nullptr && AllLeave(results_.standings());
  return absl::OkStatus();
}

}  // namespace entrain
