// EDiT's exchanges: how they begin, run on the courier layer by layer, and are merged.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/add_time.h"
#include "lib/train/layer_sync.h"

namespace entrain {
namespace {

// Two layers in flight keep the link busy while one of them is finished.
constexpr int kInFlight = 2;

}  // namespace

// ---- The caller's side -------------------------------------------------------------------------

// With what this rank has to say; its counts begin anew.
std::shared_ptr<LayerSync::Round> LayerSync::NewRound(std::vector<int> layers) {
  auto round = std::make_shared<Round>();
  round->order = std::move(layers);
  last_sync_step_ = step_;
  int64_t since = step_ - std::exchange(base_step_, step_);
  if (since > 0) {
    for (const int layer : schedule_->all()) {
      unshared_[static_cast<size_t>(layer)] = 1;
    }
  }
  for (const int layer : round->order) {
    int64_t& unshared = unshared_[static_cast<size_t>(layer)];
    if (left_ && unshared != 0) {
      since = std::max<int64_t>(since, 1);  // so that it is exchanged: there will be no other time
    }
    unshared = 0;
  }
  round->standing = {.round = static_cast<uint64_t>(rendezvous_++),
                     .steps = static_cast<uint64_t>(step_),
                     .steps_since = static_cast<uint64_t>(since),
                     .tokens_since = static_cast<uint64_t>(std::exchange(tokens_, 0)),
                     .flags = std::exchange(wishes_, 0) | (left_ ? kLeaving : 0) |
                              (std::exchange(counted_, false) ? kCounted : 0),
                     .metric_sum = std::exchange(metric_sum_, 0),
                     .metric_weight = std::exchange(metric_weight_, 0)};
  return round;
}

// One that layers wait for.
absl::Status LayerSync::StartExchange(std::vector<int> layers) {
  // A layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  if (room_ == nullptr) {
    // All layers of the last exchange are done, but the courier may not have put its things away.
    ENTRAIN_RETURN_IF_ERROR(courier_.Drain());
  }
  round_ = NewRound(std::move(layers));
  return absl::OkStatus();
}

// The rendezvous by itself, and whether there is an exchange now.
absl::StatusOr<bool> LayerSync::Meet(int64_t patience_ns) {
  round_->patience_ns = patience_ns;
  ENTRAIN_RETURN_IF_ERROR(WaitFor(Post(&LayerSync::Judge, round_)));
  trigger_->Met();
  if (!round_->exchanges) {
    TakeBack(*round_);
    return false;
  }
  BeginTurns();
  return true;
}

// The rendezvous was none: what was trained counts for the next one.
void LayerSync::TakeBack(const Round& round) {
  base_step_ -= static_cast<int64_t>(round.standing.steps_since);
  tokens_ += static_cast<int64_t>(round.standing.tokens_since);
  counted_ = counted_ || (round.standing.flags & kCounted) != 0;
}

void LayerSync::BeginTurns() {
  {
    absl::MutexLock lock(&mutex_);
    for (const int layer : round_->order) {
      // Judge may have failed by now, and then nobody comes to clear this.
      states_[static_cast<size_t>(layer)].pending = status_.ok();
    }
    allowed_ = -1;
  }
  if (room_ == nullptr) {
    Allow(options_.prefetch - 1);
  } else {
    PostTurns(round_);
  }
}

// On a device nothing is gained by waiting for the caller, who says ahead of time what its stream
// will wait for.
void LayerSync::PostTurns(const std::shared_ptr<Round>& round) {
  for (const int layer : round->order) {
    round->job = Post(&LayerSync::RunNextTurn, round);
    if (round == round_) {
      jobs_[static_cast<size_t>(layer)] = static_cast<uint32_t>(round->job);
    }
  }
}

void LayerSync::Allow(int turn) {
  const int last = std::min(turn, round_->last_turn());
  {
    absl::MutexLock lock(&mutex_);
    if (last <= allowed_) {
      return;
    }
    allowed_ = last;
  }
  Post(&LayerSync::RunAllowed, round_);
}

absl::Status LayerSync::StartBehind(std::vector<int> layers) {
  // Those that restart from the anchor would keep their old parameters if they were gathered.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  ENTRAIN_RETURN_IF_ERROR(Annotate(OnStream([&] { return exchange_.Snapshot(layers); }), "edit"));
  const std::shared_ptr<Round> round = NewRound(std::move(layers));
  round->behind = true;
  if (room_ == nullptr) {
    exchange_.UseSnapshot(round->order);
  }
  Post(&LayerSync::Judge, round);
  if (room_ == nullptr) {
    round->job = Post(&LayerSync::RunBehind, round);
  } else {
    PostTurns(round);
  }
  behind_.push_back(round);
  return absl::OkStatus();
}

// What runs behind further steps is merged, if this is the step for it; a request makes any step one.
absl::Status LayerSync::MergeSettled() {
  if (requested_) {
    return SettleAll();
  }
  while (!behind_.empty()) {
    const Round& first = *behind_.front();
    const absl::StatusOr<bool> settled =
        trigger_->Settled({.step = step_,
                           .last_sync_step = first.begun(),
                           .arrived = first.arrived.load(std::memory_order_acquire)});
    if (!settled.ok()) {
      const absl::Status why = Annotate(settled.status(), "edit");
      Fail(why);
      return why;
    }
    if (!*settled) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(Settle());
  }
  return absl::OkStatus();
}

// The first of those behind further steps.
absl::Status LayerSync::Settle() {
  const std::shared_ptr<Round> round = behind_.front();
  // A layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(Annotate(shards_->CheckAllReleased(), "edit"));
  // On a device the stream waits, except where only the rendezvous will tell whether there is an
  // exchange.
  if (round->job != 0 && (room_ == nullptr || options_.use_async)) {
    ENTRAIN_RETURN_IF_ERROR(WaitFor(round->job));
  }
  ENTRAIN_RETURN_IF_ERROR(status());
  behind_.pop_front();
  trigger_->Met();
  if (options_.overlap_merge == OverlapMerge::kMix) {
    for (const int layer : round->order) {
      unshared_[static_cast<size_t>(layer)] = 1;
    }
  }
  if (room_ != nullptr) {
    const uint64_t merged = Post(&LayerSync::MergeBehind, round);
    ENTRAIN_RETURN_IF_ERROR(Annotate(onto_->Hold(static_cast<uint32_t>(merged)), "edit"));
    if (options_.use_async && !round->exchanges) {
      TakeBack(*round);
    }
  } else if (round->exchanges) {
    exchange_.Merge(round->order);
  } else {
    exchange_.DropSnapshot(round->order);
    TakeBack(*round);
  }
  return absl::OkStatus();
}

absl::Status LayerSync::SettleAll() {
  while (!behind_.empty()) {
    ENTRAIN_RETURN_IF_ERROR(Settle());
  }
  return absl::OkStatus();
}

absl::Status LayerSync::Leave() {
  ENTRAIN_RETURN_IF_ERROR(status());
  ++moves_;
  const int pending = FirstPending();
  if (left_ || pending >= 0) {
    return absl::FailedPreconditionError(
        left_ ? "edit: leave: this replica has left already"
              : absl::StrCat("edit: leave: nobody has waited for the exchange of layer ", pending));
  }
  if (step_ < options_.local_sgd_warmup_steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: leave: at step ", step_, " of ", options_.local_sgd_warmup_steps,
                     " of warm-up, in which all replicas train together and stop together"));
  }
  if (last_sync_step_ < 0) {  // the last step of warm-up was the last step
    ENTRAIN_RETURN_IF_ERROR(Annotate(StartFirst(), "edit: leave"));
  }
  left_ = true;
  const AddTime stopwatch(&exposed_ns_);
  bool all = false;
  while (!all) {
    ENTRAIN_RETURN_IF_ERROR(StayForRound(&all));
  }
  return absl::OkStatus();
}

// What a replica that leaves has to exchange: where the others' layers have just been, a second time
// would let the outer momentum take a free step. All, if there is nothing: the rendezvous is about
// leaving.
std::vector<int> LayerSync::LeftOver() const {
  std::vector<int> layers;
  for (const int layer : schedule_->all()) {
    if (step_ > base_step_ || unshared_[static_cast<size_t>(layer)] != 0) {
      layers.push_back(layer);
    }
  }
  return layers.empty() ? schedule_->all() : layers;
}

// One more rendezvous, with those who still train: they come when their time is up, and not before.
absl::Status LayerSync::StayForRound(bool* all) {
  ENTRAIN_RETURN_IF_ERROR(SettleAll());
  ENTRAIN_RETURN_IF_ERROR(StartExchange(LeftOver()));
  ENTRAIN_ASSIGN_OR_RETURN(const bool exchanges,
                           Meet(options_.use_async ? options_.interval_ns() : 0));
  if (exchanges && room_ != nullptr) {
    for (const int layer : round_->order) {
      ENTRAIN_RETURN_IF_ERROR(HoldStream(layer));
    }
    ENTRAIN_RETURN_IF_ERROR(Drain());
  } else if (exchanges) {
    ENTRAIN_RETURN_IF_ERROR(Block(round_->order.back()));
  }
  *all = AllLeave(standings());
  return absl::OkStatus();
}

// ---- The courier's side ------------------------------------------------------------------------

uint64_t LayerSync::Post(RoundJob job, std::shared_ptr<Round> round) {
  if (room_ == nullptr) {
    return courier_.Post([this, job, round = std::move(round)] { return RunJob(job, *round); });
  }
  const auto number =
      onto_->Post([this, job, round = std::move(round)] { return RunJob(job, *round); });
  if (!number.ok() && status().ok()) {  // the stream could not be marked
    Fail(Annotate(number.status(), "edit"));
  }
  return number.ok() ? *number : onto_->last();
}

absl::Status LayerSync::RunJob(RoundJob job, Round& round) {
  uint64_t spent = 0;
  absl::Status status;
  {
    const AddTime stopwatch(&spent);
    status = (this->*job)(round);
  }
  sync_ns_.fetch_add(spent, std::memory_order_relaxed);
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("edit: exchange ", syncs_ + 1));
    Fail(status);
  }
  return status;
}

absl::Status LayerSync::WaitFor(uint64_t job) {
  return room_ == nullptr ? courier_.Wait(job) : onto_->Wait(static_cast<uint32_t>(job));
}

absl::Status LayerSync::Drain() {
  return room_ == nullptr ? courier_.Drain() : onto_->Drain();
}

absl::Status LayerSync::Judge(Round& round) {
  if (room_ != nullptr) {
    // What the stream has made of layers that never came is of no use to others.
    ENTRAIN_RETURN_IF_ERROR(shards_->broken());
    if (round.behind) {
      exchange_.UseSnapshot(round.order);
    }
  }
  const absl::StatusOr<bool> exchanges =
      exchange_.Judge(round.order, round.standing, round.patience_ns);
  if (!exchanges.ok()) {
    return Annotate(exchanges.status(), "rendezvous");
  }
  round.exchanges = *exchanges;
  absl::MutexLock lock(&mutex_);
  standings_ = exchange_.standings();
  met_ = static_cast<int64_t>(round.standing.round) + 1;
  return absl::OkStatus();
}

absl::Status LayerSync::RunAllowed(Round& round) {
  while (true) {
    int allowed = 0;
    {
      absl::MutexLock lock(&mutex_);
      ENTRAIN_RETURN_IF_ERROR(status_);
      allowed = allowed_;
    }
    if (round.next_finish > allowed) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(RunTurn(round, allowed));
  }
}

// All its layers at once, if the replicas exchange.
absl::Status LayerSync::RunBehind(Round& round) {
  while (round.exchanges && round.next_finish <= round.last_turn()) {
    ENTRAIN_RETURN_IF_ERROR(status());
    ENTRAIN_RETURN_IF_ERROR(RunTurn(round, round.last_turn()));
  }
  round.arrived.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status LayerSync::RunNextTurn(Round& round) {
  ENTRAIN_RETURN_IF_ERROR(status());
  if (round.exchanges) {
    const int ahead = options_.in_flight() - 1;
    ENTRAIN_RETURN_IF_ERROR(RunTurn(round, std::min(round.next_finish + ahead, round.last_turn())));
  }
  if (!round.exchanges || round.next_finish > round.last_turn()) {
    round.arrived.store(true, std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::Status LayerSync::SealFirst(Round& /*round*/) {
  ENTRAIN_RETURN_IF_ERROR(shards_->broken());
  exchange_.SealAnchors();
  absl::MutexLock lock(&mutex_);
  finished_.anchor_checksum = exchange_.anchors().checksum();
  return absl::OkStatus();
}

absl::Status LayerSync::MergeBehind(Round& round) {
  if (round.exchanges) {
    exchange_.Merge(round.order);
  } else {
    exchange_.DropSnapshot(round.order);
  }
  return absl::OkStatus();
}

// Finishes the next layer in turn, with the one after it begun if that is allowed.
absl::Status LayerSync::RunTurn(Round& round, int allowed) {
  while (round.next_begin <= std::min(allowed, round.next_finish + kInFlight - 1)) {
    const int layer = round.order[static_cast<size_t>(round.next_begin)];
    ENTRAIN_RETURN_IF_ERROR(Annotate(exchange_.Begin(layer), absl::StrCat("layer ", layer)));
    ++round.next_begin;
  }
  const int layer = round.order[static_cast<size_t>(round.next_finish)];
  ENTRAIN_RETURN_IF_ERROR(Annotate(exchange_.Finish(layer), absl::StrCat("layer ", layer)));
  ++round.next_finish;
  Publish(round, layer);
  return absl::OkStatus();
}

void LayerSync::Publish(const Round& round, int layer) {
  std::vector<Continuation> then;
  const LayerReport& report = exchange_.report(layer);
  const bool last = round.next_finish > round.last_turn();
  rejections_ += report.accepted ? 0 : 1;
  rollbacks_ += report.rolled_back ? 1 : 0;
  if (last) {
    ++syncs_;
    exchange_.FreeBuffers();
  }
  {
    absl::MutexLock lock(&mutex_);
    if (last) {
      finished_ = {syncs_, round.begun(), exchange_.anchors().checksum(), rejections_, rollbacks_};
    }
    if (room_ == nullptr) {
      states_[static_cast<size_t>(layer)].pending = false;
    }
    then.swap(states_[static_cast<size_t>(layer)].then);
  }
  for (Continuation& next : then) {
    next(absl::OkStatus());
  }
}

void LayerSync::Fail(const absl::Status& why) {
  // A rank that gives up tells the others of both groups, so that nobody waits for it; before its
  // own caller, who may exit.
  for (const auto& comm : {exchange_.groups().model, exchange_.groups().sync}) {
    if (comm != nullptr) {
      comm->EndWith(why);
    }
  }
  std::vector<Continuation> then;
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
    for (LayerState& state : states_) {
      state.pending = false;
      std::move(state.then.begin(), state.then.end(), std::back_inserter(then));
      state.then.clear();
    }
  }
  for (Continuation& next : then) {
    next(why);
  }
}

}  // namespace entrain
