// A gradient channel's state: the arrays and numbers of a run, when they may be saved, and how a
// run continues from them.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/gradient_channel.h"

namespace entrain {
namespace {

absl::Status CheckKind(const ChannelOptions& options, CheckpointKind kind) {
  return kind == CheckpointKind::kPortable && options.master_dtype() == DType::kF64
             ? absl::UnimplementedError("kind: portable checkpoints are for f32 masters")
             : absl::OkStatus();
}

ModelPart PartOf(const Slab& slab) {
  ModelPart part;
  part.mesh[static_cast<size_t>(Axis::kShard)] = slab.slots();
  part.layers.push_back({slab.layer(0).full, false});
  return part;
}

}  // namespace

// A portable checkpoint holds the state after a commit: the masters, the optimizer's arrays, and
// the counts. An exact checkpoint also holds the half batch that has been added, and the round that
// is over but not yet taken.
void GradientChannel::VisitState(StateVisitor& visitor) {
  record_.Fill({in_flight_, rule_.kind(), finished_, landed_, round_.state().result()});
  round_.state().progress().VisitState(visitor);
  quota_.VisitState(visitor);
  round_.ranks().cut().own().VisitState(visitor);
  record_.VisitGroups(visitor);
  if (visitor.kind() == CheckpointKind::kExact) {
    record_.VisitRounds(visitor);
    round_.state().progress().VisitStops(visitor);
    visitor.Value("held/microbatches", Holder::kRank, &held_.microbatches);
    visitor.Value("held/tokens", Holder::kRank, &held_.tokens);
    visitor.Array("held/gradients", Holder::kRank, options_.grads_dtype, accumulator_.data(),
                  options_.count);
    visitor.Array("params", Holder::kAll, options_.params_dtype, options_.params, options_.count);
    visitor.Array("made", Holder::kAll, options_.params_dtype, round_.buffers().com(),
                  options_.count);
  }
  callers_.VisitState(visitor);
}

// Must be called before an untagged call over all ranks. Waits for the round under way, which may
// replace the communicator and the shards. Also waits until no newcomers are being connected,
// because the calls that connect newcomers are untagged too.
void GradientChannel::Quieten() {
  worker_.Drain().IgnoreError();  // the next use of the worker returns its error
  round_.ranks().AwaitNewcomers();
}

absl::Status GradientChannel::AddState(absl::string_view name, Holder holder, DType dtype,
                                       void* data, int64_t count) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  return Annotate(callers_.Add(name, holder, dtype, data, count), "acco");
}

absl::Status GradientChannel::CheckSavable(CheckpointKind) const {
  ENTRAIN_RETURN_IF_ERROR(CheckNotStarted());
  return quota_.added() == 0
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   absl::StrCat(quota_.added(),
                                " micro-batches have been added since the last install, and what "
                                "is computed in between is not part of a checkpoint"));
}

// Drains the worker, then checks that all ranks may go on. Saving and loading begin with Prepare.
// The worker must be drained first, because on a device the calls of jobs and of checkpoints have
// no tags.
absl::Status GradientChannel::Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine) {
  ENTRAIN_RETURN_IF_ERROR(worker_.Drain());
  mine.Update(CheckKind(options_, kind));
  mine.Update(CheckSavable(kind));
  return all.Agree(mine);
}

// After a loss either all ranks save again or no rank does, even if the save has failed on some
// ranks only.
absl::Status GradientChannel::Save(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  Quieten();
  ChannelRecovery* const recovery = round_.ranks().recovery();
  const int64_t saves = recovery == nullptr ? 0 : recovery->saves();
  absl::Status status = SaveOnce(options);
  while (round_.ranks().Answers(status)) {
    status = worker_.Wait(worker_.Post([this, recovery] { return recovery->Run(round_); }));
    if (!status.ok()) {
      return Fail(Annotate(status, "acco: save"));
    }
    status = recovery->saves() > saves ? absl::OkStatus() : SaveOnce(options);
  }
  if (status.ok() && recovery != nullptr) {
    recovery->Saved(saves + 1);
  }
  return status;
}

absl::Status GradientChannel::SaveOnce(const CheckpointOptions& options) {
  Quieten();
  AllRanks all(round_.ranks().comm(), nullptr, options.timeout_ns);
  const auto save = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(Prepare(all, options.kind, CheckOptions(options)));
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    StateList state(slab(), options.kind, round_.buffers().own().callers());
    VisitState(state);
    return SaveState(all, PartOf(slab()), options, round_.state().progress().commits(), state);
  };
  const absl::Status status = save();
  return round_.ranks().Answers(status) ? status : End(all, status, "save");
}

absl::StatusOr<std::unique_ptr<OpenState>> GradientChannel::Open(CheckpointKind kind) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<OpenState>> {
    ENTRAIN_RETURN_IF_ERROR(worker_.Drain());
    round_.ranks().AwaitNewcomers();
    ENTRAIN_RETURN_IF_ERROR(CheckKind(options_, kind));
    ENTRAIN_RETURN_IF_ERROR(CheckSavable(kind));
    auto list = std::make_unique<StateList>(slab(), kind, round_.buffers().own().callers());
    VisitState(*list);
    return OpenState::Make(this, AllRanks(round_.ranks().comm(), nullptr, 0), PartOf(slab()),
                           std::move(list), options_.at.limit_ns);
  };
  auto opened = open();
  return opened.ok() ? std::move(opened) : Annotate(opened.status(), "acco: state");
}

absl::Status GradientChannel::Load(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  Quieten();
  AllRanks all(round_.ranks().comm(), nullptr, options.timeout_ns);
  StateList state(slab(), options.kind, round_.buffers().own().callers());
  return Restore(all, "load", CheckOptions(options), &state, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    return LoadState(all, PartOf(slab()), options, &state);
  });
}

absl::Status GradientChannel::TakeUp(OpenState& state, int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  Quieten();
  AllRanks all(round_.ranks().comm(), nullptr, timeout_ns);
  StateList live(slab(), state.kind(), round_.buffers().own().callers());
  const absl::Status status =
      Restore(all, "commit", absl::OkStatus(), &live, [&] { return state.GiveTo(all, &live); });
  state.TakeBack(&live);
  return status;
}

// Continues from the values that `fill` loads into the list. After an error the state is unchanged.
absl::Status GradientChannel::Restore(AllRanks& all, absl::string_view doing, absl::Status mine,
                                      StateList* state, absl::FunctionRef<absl::Status()> fill) {
  const auto restore = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(Prepare(all, state->kind(), std::move(mine)));
    VisitState(*state);
    ENTRAIN_RETURN_IF_ERROR(fill());
    return record_.CheckLoaded(*state);
  };
  const absl::Status status = End(all, restore(), doing);
  if (!status.ok()) {
    return status;
  }
  ++moves_;
  record_.Clear();
  if (const absl::Status applied =
          Annotate(state->Apply(all.deadline()), absl::StrCat("acco: ", doing));
      !applied.ok()) {
    return Fail(applied);
  }
  const ChannelRecord::Rounds rounds = record_.Read(state->kind(), round_.state().progress());
  in_flight_ = rounds.in_flight;
  rule_.Restore(rounds.kind == RoundKind::kEstimate);
  if (rounds.finished) {  // a loaded run continues even if its end was saved
    round_.state().progress().ForgetStops();
  }
  finished_ = rounds.finished && round_.state().progress().Done();
  job_ = 0;
  over_.store(quota_.rounds(), std::memory_order_release);
  RoundResult made = rounds.made;
  landed_ = rounds.landed;
  made.ranks = landed_.ranks = round_.ranks().comm()->size();
  made.joins = landed_.joins = round_.ranks().joins();
  round_.state().Restore(made);
  landed_ns_ = 0;
  if (const absl::Status copied = End(all, round_.ranks().cut().RenewCopy(), doing); !copied.ok()) {
    return FailAll(copied);
  }
  return state->kind() == CheckpointKind::kPortable ? GoOnFromMasters(all) : absl::OkStatus();
}

// Makes the masters the parameters, and empties the accumulator.
absl::Status GradientChannel::GoOnFromMasters(const AllRanks& all) {
  held_ = {};
  round_.state().progress().ForgetStops();
  finished_ = round_.state().progress().Done();
  absl::Status went_on = ComputeAt(round_.buffers().own().at(),
                                   [&] { ZeroArray(accumulator_.data(), accumulator_.size()); });
  if (went_on.ok()) {
    went_on = round_.PublishMasters();
  }
  const absl::Status status = End(all, went_on, "load");
  return status.ok() ? status : FailAll(status);
}

// Returns the error as the caller sees it. If the group has ended with the error, this object ends
// too.
absl::Status GradientChannel::End(const AllRanks& all, absl::Status status,
                                  absl::string_view doing) {
  status = Annotate(status, absl::StrCat("acco: ", doing));
  if (all.broken()) {
    return Fail(status);
  }
  return status;
}

}  // namespace entrain
