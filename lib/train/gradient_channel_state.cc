// A gradient channel's state: what it is, when it may be saved, and how a run goes on from it.
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/gradient_channel.h"

namespace entrain {

// The portable kind is what a commit leaves: masters, the optimizer's arrays, counts. The exact kind also has the half that has
// been added, and the round that is over and not yet taken.
void GradientChannel::VisitState(StateVisitor& visitor) {
  visitor.Value("steps", Holder::kAll, &steps_);
  visitor.Value("rounds", Holder::kAll, &rounds_);
  visitor.Value("gradients", Holder::kAll, &gradients_);
  visitor.Value("tokens", Holder::kAll, &tokens_);
  visitor.Value("installs", Holder::kAll, &installs_);
  const SlabLayer& layer = slab_.layer(0);
  if (options_.master_dtype() == DType::kF64) {
    visitor.Array("master", Holder::kRank, DType::kF64, master_.data(), layer.valid);
  } else {
    visitor.Layer("master", 0, reinterpret_cast<float*>(master_.data()));
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    visitor.Layer(absl::StrCat("optim/", i), 0, reinterpret_cast<float*>(state_[i].data()));
  }
  for (size_t i = 0; i < saved_groups_.size(); ++i) {
    visitor.Array(absl::StrCat("group/", i), Holder::kAll, DType::kI64, saved_groups_[i].data(), 3);
  }
  if (visitor.kind() == CheckpointKind::kExact) {
    visitor.Array("flags", Holder::kAll, DType::kI64, flags_.data(),
                  static_cast<int64_t>(flags_.size()));
    visitor.Array("counts", Holder::kAll, DType::kI64, counts_.data(),
                  static_cast<int64_t>(counts_.size()));
    visitor.Array("values", Holder::kAll, DType::kF64, values_.data(),
                  static_cast<int64_t>(values_.size()));
    visitor.Value("method", Holder::kAll, &method_);
    visitor.Value("stops", Holder::kAll, &stops_);
    visitor.Value("held/microbatches", Holder::kRank, &held_.microbatches);
    visitor.Value("held/tokens", Holder::kRank, &held_.tokens);
    visitor.Array("held/gradients", Holder::kRank, options_.grads_dtype, accumulator_.data(),
                  options_.count);
    visitor.Array("params", Holder::kAll, options_.params_dtype, options_.params, options_.count);
    visitor.Array("made", Holder::kAll, options_.params_dtype, com_.data(), options_.count);
  }
  callers_.VisitState(visitor);
}

absl::Status GradientChannel::AddState(absl::string_view name, Holder holder, DType dtype,
                                       void* data, int64_t count) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  return Annotate(callers_.Add(name, holder, dtype, data, count), "acco");
}

ModelPart GradientChannel::Part() const {
  ModelPart part;
  part.mesh[static_cast<size_t>(Axis::kShard)] = slab_.slots();
  part.layers.push_back({options_.count, false});
  return part;
}

absl::Status GradientChannel::CheckBetweenRounds() const {
  ENTRAIN_RETURN_IF_ERROR(CheckNotStarted());
  return round_added_ == 0 ? absl::OkStatus()
                           : absl::FailedPreconditionError(absl::StrCat(
                                 round_added_,
                                 " micro-batches have been added since the last install, and what "
                                 "is computed in between is not part of a checkpoint"));
}

absl::Status GradientChannel::CheckKind(CheckpointKind kind) const {
  return kind == CheckpointKind::kPortable && options_.master_dtype() == DType::kF64
             ? absl::UnimplementedError("kind: portable checkpoints are for f32 masters")
             : absl::OkStatus();
}

// What saving and loading begin with: nothing is under way, and all ranks may. In this order, since
// on a device the calls of both have no tags.
absl::Status GradientChannel::Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine) {
  ENTRAIN_RETURN_IF_ERROR(worker_.Drain());
  mine.Update(CheckKind(kind));
  mine.Update(CheckBetweenRounds());
  return all.Agree(mine);
}

// What is saved of the exact kind and is no variable as it is.
void GradientChannel::FillSaved() {
  flags_ = {in_flight_, commits_, second_half_, finished_};
  counts_ = {landed_.rounds, landed_.commits, landed_.gradients, landed_.tokens,
             made_.microbatches};
  values_ = {made_.lr, made_.grad_norm, made_.clip_factor};
}

absl::Status GradientChannel::Save(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  AllRanks all(comm_, nullptr, options.timeout_ns);
  const auto save = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(Prepare(all, options.kind, CheckOptions(options)));
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    FillSaved();
    StateList state(slab_, options.kind, own_->callers());
    VisitState(state);
    return SaveState(all, Part(), options, steps_, state);
  };
  return End(all, save(), "save");
}

absl::StatusOr<std::unique_ptr<OpenState>> GradientChannel::Open(CheckpointKind kind) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<OpenState>> {
    ENTRAIN_RETURN_IF_ERROR(worker_.Drain());
    ENTRAIN_RETURN_IF_ERROR(CheckKind(kind));
    ENTRAIN_RETURN_IF_ERROR(CheckBetweenRounds());
    FillSaved();
    auto list = std::make_unique<StateList>(slab_, kind, own_->callers());
    VisitState(*list);
    return OpenState::Make(this, AllRanks(comm_, nullptr, 0), Part(), std::move(list),
                           options_.at.limit_ns);
  };
  auto opened = open();
  return opened.ok() ? std::move(opened) : Annotate(opened.status(), "acco: state");
}

// Halves, or rounds of one method, mean nothing to another; the same answer on all ranks.
absl::Status GradientChannel::CheckLoaded(const StateList& state) const {
  for (size_t i = 0; i < saved_groups_.size(); ++i) {
    const std::array<int64_t, 3>& here = saved_groups_[i];
    std::array<int64_t, 3> there = {};
    for (const StateItem& item : state.items()) {
      if (item.name == absl::StrCat("group/", i)) {
        std::memcpy(there.data(), item.loaded.data(), sizeof(there));
      }
    }
    if (there != here) {
      const auto say = [](const std::array<int64_t, 3>& group) {
        return absl::StrCat("first ", group[0], ", count ", group[1], ", ", group[2],
                            " state arrays");
      };
      return absl::FailedPreconditionError(absl::StrCat("groups[", i, "] of the checkpoint has ",
                                                        say(there), "; here it has ", say(here)));
    }
  }
  const int64_t method = state.Loaded("method");
  return state.kind() == CheckpointKind::kPortable || method == method_
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat("the checkpoint is of method ", method,
                                                          ", and here it is ", method_,
                                                          "; a portable one will do"));
}

absl::Status GradientChannel::Load(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  AllRanks all(comm_, nullptr, options.timeout_ns);
  StateList state(slab_, options.kind, own_->callers());
  return Restore(all, "load", CheckOptions(options), &state, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    return LoadState(all, Part(), options, &state);
  });
}

absl::Status GradientChannel::TakeUp(OpenState& state, int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(status_);
  AllRanks all(comm_, nullptr, timeout_ns);
  StateList live(slab_, state.kind(), own_->callers());
  const absl::Status status =
      Restore(all, "commit", absl::OkStatus(), &live, [&] { return state.GiveTo(all, &live); });
  state.TakeBack(&live);
  return status;
}

// Goes on from what `fill` loads into the list, or is as before.
absl::Status GradientChannel::Restore(AllRanks& all, absl::string_view doing, absl::Status mine,
                                      StateList* state, absl::FunctionRef<absl::Status()> fill) {
  const auto restore = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(Prepare(all, state->kind(), std::move(mine)));
    VisitState(*state);
    ENTRAIN_RETURN_IF_ERROR(fill());
    return CheckLoaded(*state);
  };
  const absl::Status status = End(all, restore(), doing);
  if (!status.ok()) {
    return status;
  }
  ++moves_;
  flags_ = {};
  if (const absl::Status applied =
          Annotate(state->Apply(all.deadline()), absl::StrCat("acco: ", doing));
      !applied.ok()) {
    return Fail(applied);
  }
  in_flight_ = flags_[0] != 0;
  commits_ = flags_[1] != 0;
  second_half_ = flags_[2] != 0;
  stops_ = flags_[3] != 0 ? 0 : stops_;  // who loads the end of a run wants it to go on
  finished_ = flags_[3] != 0 && Done();
  job_ = 0;
  over_.store(installs_, std::memory_order_release);
  made_ = {};
  made_.rounds = rounds_;
  made_.commits = steps_;
  made_.gradients = gradients_;
  made_.tokens = tokens_;
  landed_ = made_;
  if (state->kind() == CheckpointKind::kExact) {
    made_.committed = commits_;
    made_.microbatches = counts_[4];
    made_.lr = values_[0];
    made_.grad_norm = values_[1];
    made_.clip_factor = values_[2];
    landed_.rounds = counts_[0];
    landed_.commits = counts_[1];
    landed_.gradients = counts_[2];
    landed_.tokens = counts_[3];
  }
  return state->kind() == CheckpointKind::kPortable ? GoOnFromMasters(all) : absl::OkStatus();
}

// The parameters are the masters, and nothing has been added to.
absl::Status GradientChannel::GoOnFromMasters(const AllRanks& all) {
  held_ = {};
  stops_ = 0;
  finished_ = Done();
  const DType type = options_.params_dtype;
  const auto go_on = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] {
      ZeroArray(accumulator_.data(), accumulator_.size());
      CurrentKernels().cast(Own(type), type, master_.data(), options_.master_dtype(),
                            slab_.layer(0).valid);
    }));
    Call gather = ParametersCall();
    gather.options = Options();
    ENTRAIN_RETURN_IF_ERROR(comm_->Run(gather));
    ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] {
      CopyArray(options_.params, com_.data(), options_.count * SizeOf(type));
    }));
    return own_->Lead();
  };
  const absl::Status status = End(all, go_on(), "load");
  return status.ok() ? status : FailAll(status);
}

// The error as the caller sees it; when the group has ended with it, so has this object.
absl::Status GradientChannel::End(const AllRanks& all, absl::Status status,
                                  absl::string_view doing) {
  status = Annotate(status, absl::StrCat("acco: ", doing));
  if (all.broken()) {
    return Fail(status);
  }
  return status;
}

}  // namespace entrain
