// EDiT's state: what it is, when it may be saved, and how a run goes on from it.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/layer_sync.h"

namespace entrain {

// The one list of what EDiT keeps. A new part adds its VisitState here.
void LayerSync::VisitState(StateVisitor& visitor) {
  // Replicas of A-EDiT have each made their own number of steps.
  visitor.Value("steps", Holder::kReplica, &step_);
  visitor.Value("last_sync_step", Holder::kReplica, &last_sync_step_);
  visitor.Value("base_step", Holder::kReplica, &base_step_);
  visitor.Value("rejections", Holder::kReplica, &rejections_);
  visitor.Value("rollbacks", Holder::kReplica, &rollbacks_);
  visitor.Value("syncs", Holder::kAll, &syncs_);
  visitor.Value("rendezvous", Holder::kAll, &rendezvous_);
  visitor.Value("tokens", Holder::kRank, &tokens_);
  visitor.Value("metric_sum", Holder::kRank, &metric_sum_);
  visitor.Value("metric_weight", Holder::kRank, &metric_weight_);
  if (options_.overlap_steps > 0 && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("behind/begun", Holder::kReplica, DType::kI64, begun_behind_.data(), layers_);
  }
  const bool leaves_over = options_.fragments > 1 || options_.overlap_merge == OverlapMerge::kMix;
  if (leaves_over && visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("unshared", Holder::kReplica, DType::kI64, unshared_.data(), layers_);
  }
  exchange_.VisitState(visitor);
  const LayerArrays& live = shards_->live();
  for (int l = 0; l < layers_; ++l) {
    const SlabLayer& layer = shards_->slab().layer(l);
    // Where there is an anchor, the parameters are what it is.
    if (layer.full > 0 && !(layer.trains() && exchange_.anchors().exist())) {
      visitor.Layer("params", l, live.param(l), live.dtype);
    }
    if (layer.full > 0) {
      visitor.Array(absl::StrCat("live/", l), Holder::kRank, live.dtype, live.param(l),
                    layer.shard);
    }
  }
  callers_.VisitState(visitor);
}

absl::Status LayerSync::AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                                 int64_t count) {
  ENTRAIN_RETURN_IF_ERROR(status());
  return Annotate(callers_.Add(name, holder, dtype, data, count), "edit");
}

// Nothing reads or writes the state but the caller, and what runs behind further steps.
absl::Status LayerSync::CheckQuiet() const {
  const int pending = FirstPending();
  if (pending >= 0) {
    return absl::FailedPreconditionError(absl::StrCat("the exchange of layer ", pending,
                                                      " is under way; wait for all layers first"));
  }
  if (shards_->reductions() != reductions_) {
    return absl::FailedPreconditionError(
        absl::StrCat("gradients of step ", step_,
                     " have been reduced already, and they are not part of a checkpoint"));
  }
  return absl::OkStatus();
}

absl::Status LayerSync::CheckNothingBehind() const {
  return behind_.empty() ? absl::OkStatus()
                         : absl::FailedPreconditionError(
                               "an exchange runs behind these steps; request_sync makes one that "
                               "the layers wait for");
}

// A portable checkpoint has nothing of what replicas have trained since they exchanged; an exact one has what runs behind
// further steps too, once it has come. In A-EDiT it may come when it likes.
absl::Status LayerSync::CheckRendezvous(CheckpointKind kind) const {
  ENTRAIN_RETURN_IF_ERROR(CheckQuiet());
  if (kind == CheckpointKind::kPortable || options_.use_async) {
    ENTRAIN_RETURN_IF_ERROR(CheckNothingBehind());
  }
  int64_t last = last_sync_step_;
  if (kind == CheckpointKind::kPortable) {
    absl::MutexLock lock(&mutex_);
    last = finished_.last_sync_step;
  }
  if (last == step_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", step_, " has had no exchange (",
      last < 0 ? std::string("there was none yet") : absl::StrCat("the last was at step ", last),
      "); save after a begin_forward that exchanges, when all layers are waited for"));
}

AllRanks LayerSync::Everybody(int64_t timeout_ns) const {
  return AllRanks(exchange_.groups().model, exchange_.groups().sync, timeout_ns);
}

absl::Status LayerSync::Save(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status());
  AllRanks all = Everybody(options.timeout_ns);
  const auto save = [&]() -> absl::Status {
    absl::Status mine = CheckOptions(options);
    mine.Update(ComeToRest(options.timeout_ns));
    mine.Update(CheckRendezvous(options.kind));
    mine.Update(PrepareSnapshots());
    ENTRAIN_RETURN_IF_ERROR(all.Agree(mine));
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    ENTRAIN_RETURN_IF_ERROR(Drain());
    StateList state(shards_->slab(), options.kind, Place());
    VisitState(state);
    return SaveState(all, PartOf(*mesh_, shards_->slab()), options, step_, state);
  };
  return End(all, save(), "save");
}

absl::Status LayerSync::Load(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status());
  AllRanks all = Everybody(options.timeout_ns);
  StateList state(shards_->slab(), options.kind, Place());
  return Restore(all, "load", options.timeout_ns, CheckOptions(options), &state,
                 [&]() -> absl::Status {
                   ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
                   return LoadState(all, PartOf(*mesh_, shards_->slab()), options, &state);
                 });
}

absl::Status LayerSync::TakeUp(OpenState& state, int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(status());
  AllRanks all = Everybody(timeout_ns);
  StateList live(shards_->slab(), state.kind(), Place());
  const absl::Status status = Restore(all, "commit", timeout_ns, absl::OkStatus(), &live,
                                      [&] { return state.GiveTo(all, &live); });
  state.TakeBack(&live);
  return status;
}

absl::StatusOr<std::unique_ptr<OpenState>> LayerSync::Open(CheckpointKind kind) {
  ENTRAIN_RETURN_IF_ERROR(status());
  // What a commit sets has them.
  const bool creates = LacksAnchors();
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<OpenState>> {
    ENTRAIN_RETURN_IF_ERROR(ComeToRest(0));
    ENTRAIN_RETURN_IF_ERROR(CheckQuiet());
    ENTRAIN_RETURN_IF_ERROR(PrepareSnapshots());
    ENTRAIN_RETURN_IF_ERROR(Drain());
    if (creates) {
      ENTRAIN_RETURN_IF_ERROR(OnStream([this] { return exchange_.CreateAnchors(); }));
    }
    auto list = std::make_unique<StateList>(shards_->slab(), kind, Place());
    VisitState(*list);
    return OpenState::Make(this, Everybody(0), PartOf(*mesh_, shards_->slab()), std::move(list),
                           Place().limit_ns);
  };
  auto opened = open();
  if (creates) {
    exchange_.DropAnchors();
  }
  return opened.ok() ? std::move(opened) : Annotate(opened.status(), "edit: state");
}

// Goes on from what `fill` loads into the list, or is as before.
absl::Status LayerSync::Restore(AllRanks& all, absl::string_view doing, int64_t timeout_ns,
                                absl::Status mine, StateList* state,
                                absl::FunctionRef<absl::Status()> fill) {
  // Memory for them; they count when something was loaded into them.
  const bool creates = LacksAnchors();
  const auto restore = [&]() -> absl::Status {
    mine.Update(ComeToRest(timeout_ns));
    mine.Update(CheckQuiet());
    mine.Update(CheckNothingBehind());
    mine.Update(shards_->CheckAllReleased());
    mine.Update(PrepareSnapshots());
    if (mine.ok() && creates) {
      mine = OnStream([this] { return exchange_.CreateAnchors(); });
    }
    ENTRAIN_RETURN_IF_ERROR(all.Agree(mine));
    ENTRAIN_RETURN_IF_ERROR(Drain());
    VisitState(*state);
    ENTRAIN_RETURN_IF_ERROR(fill());
    return all.Agree(CheckLoaded(*state));
  };
  const absl::Status status = End(all, restore(), doing);
  if (!status.ok()) {
    if (creates) {
      exchange_.DropAnchors();
    }
    return status;
  }
  ++moves_;
  if (const absl::Status applied =
          Annotate(state->Apply(all.deadline()), absl::StrCat("edit: ", doing));
      !applied.ok()) {
    Fail(applied);
    return applied;
  }
  const absl::Status gone_on = OnStream([&] {
    GoOnFrom(state->kind());
    return absl::OkStatus();
  });
  if (!gone_on.ok()) {
    Fail(gone_on);
  }
  return gone_on;
}

// On a device, where nobody holds the courier back: it makes no more calls, which have no tags
// there, nor have those that follow here; the stream is through with what it had to do; and that was
// done with parameters that had come.
absl::Status LayerSync::ComeToRest(int64_t timeout_ns) {
  if (room_ == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(Drain());
  ENTRAIN_RETURN_IF_ERROR(
      FinishStream(Place(), timeout_ns > 0 ? Deadline::After(timeout_ns) : room_->limit()));
  return shards_->broken();
}

ArraysAt LayerSync::Place() const {
  return room_ == nullptr ? ArraysAt()
                          : ArraysAt{&room_->device(), room_->callers(), room_->limit_ns()};
}

// So that VisitState can show what runs behind further steps.
absl::Status LayerSync::PrepareSnapshots() {
  std::fill(begun_behind_.begin(), begun_behind_.end(), -1);
  for (const std::shared_ptr<Round>& round : behind_) {
    for (const int layer : round->order) {
      begun_behind_[static_cast<size_t>(layer)] = round->begun();
    }
  }
  return options_.overlap_steps > 0 ? exchange_.ReserveSnapshots() : absl::OkStatus();
}

// What was behind further steps when it was saved had come.
void LayerSync::ResumeBehind() {
  std::map<int64_t, std::vector<int>> rounds;
  for (const int layer : schedule_->all()) {
    if (begun_behind_[static_cast<size_t>(layer)] >= 0) {
      rounds[begun_behind_[static_cast<size_t>(layer)]].push_back(layer);
      exchange_.Resume(layer);
    }
  }
  for (auto& [begun, layers] : rounds) {
    auto round = std::make_shared<Round>();
    round->order = std::move(layers);
    round->standing.steps = static_cast<uint64_t>(begun);
    round->exchanges = true;
    round->arrived.store(true, std::memory_order_relaxed);
    behind_.push_back(std::move(round));
  }
}

void LayerSync::GoOnFrom(CheckpointKind kind) {
  const bool portable = kind == CheckpointKind::kPortable;
  exchange_.Adopt(/*live=*/portable);
  if (portable) {  // the replicas have just exchanged
    last_sync_step_ = base_step_ = step_;
    tokens_ = 0;
    counted_ = false;
    metric_sum_ = metric_weight_ = 0;
    std::fill(unshared_.begin(), unshared_.end(), 0);
  }
  ResumeBehind();  // nothing, if it is portable
  microbatches_ = 0;
  requested_ = false;
  wishes_ = 0;
  trigger_->Met();  // an interval begins at the rendezvous that was saved
  absl::MutexLock lock(&mutex_);
  finished_ = {syncs_, base_step_, exchange_.anchors().checksum(), rejections_, rollbacks_};
  met_ = rendezvous_;
  standings_.clear();
}

absl::Status LayerSync::CheckLoaded(const StateList& state) const {
  const int64_t steps = state.Loaded("steps"), last = state.Loaded("last_sync_step"),
                base = state.Loaded("base_step");
  if (last != steps || base < 0 || base > steps || state.Loaded("syncs") < 0 ||
      state.Loaded("rendezvous") < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps ", steps, ", last_sync_step ", last, ", base_step ", base, ", syncs ",
                     state.Loaded("syncs"), ", rendezvous ", state.Loaded("rendezvous"),
                     " are of no rendezvous"));
  }
  if (steps < options_.local_sgd_warmup_steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint is of step ", steps, ", after warm-up, and here step ", steps,
                     " is before the end of warm-up: local_sgd_warmup_steps is ",
                     options_.local_sgd_warmup_steps));
  }
  return absl::OkStatus();
}

// The error as the caller sees it; when a group has ended with it, so has this object.
absl::Status LayerSync::End(const AllRanks& all, absl::Status status, absl::string_view doing) {
  status = Annotate(status, absl::StrCat("edit: ", doing));
  if (all.broken()) {
    Fail(status);
  }
  return status;
}

}  // namespace entrain
