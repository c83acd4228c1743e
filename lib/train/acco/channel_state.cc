#include "lib/train/acco/channel_state.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"

namespace entrain {
namespace {

absl::Status CheckKind(const ChannelOptions& options, CheckpointKind kind) {
  return kind == CheckpointKind::kPortable && options.master_dtype() == DType::kF64
             ? absl::UnimplementedError("kind: portable checkpoints are for f32 masters")
             : absl::OkStatus();
}

ModelPart PartOf(const Slab& slab, const ChannelOptions& options) {
  ModelPart part;
  part.identity = options.identity_text;
  part.mesh[static_cast<size_t>(Axis::kShard)] = slab.slots();
  part.layers.push_back({slab.layer(0).full, false});
  return part;
}

}  // namespace

// A portable checkpoint contains the state after a commit: the master parameters, the optimizer's
// arrays and the counts. An exact checkpoint also contains the half batch in the accumulator, and
// the round that is over but was not taken.
void ChannelState::VisitState(StateVisitor& visitor) {
  record_.Fill({parts_.jobs.in_flight(), parts_.rule.kind(), parts_.landed.finished,
                parts_.landed.result, parts_.round.state().result()});
  parts_.round.state().progress().VisitState(visitor);
  parts_.quota.VisitState(visitor);
  ranks().cut().own().VisitState(visitor);
  record_.VisitGroups(visitor);
  if (visitor.kind() == CheckpointKind::kExact) {
    record_.VisitRounds(visitor);
    parts_.round.state().progress().VisitStops(visitor);
    visitor.Value("held/microbatches", Holder::kRank, &parts_.held.microbatches);
    visitor.Value("held/tokens", Holder::kRank, &parts_.held.tokens);
    visitor.Array("held/gradients", Holder::kRank, parts_.options.grads_dtype,
                  parts_.accumulator.data(), parts_.options.count);
    visitor.Array("params", Holder::kAll, parts_.options.params_dtype, parts_.options.params,
                  parts_.options.count);
    visitor.Array("made", Holder::kAll, parts_.options.params_dtype, parts_.round.buffers().com(),
                  parts_.options.count);
  }
  callers_.VisitState(visitor);
}

// Must be called before a call over all ranks that has no tag. Waits for the round under way,
// because a round may replace the communicator and the partition. Waits until no newcomers are
// being connected, because the calls that connect them have no tags either.
void ChannelState::Quieten() {
  parts_.jobs.worker().Drain().IgnoreError();  // the next use of the worker returns its error
  ranks().AwaitNewcomers();
}

absl::Status ChannelState::AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                                    int64_t count) {
  ENTRAIN_RETURN_IF_ERROR(parts_.failure.status());
  return Annotate(callers_.Add(name, holder, dtype, data, count), "acco");
}

absl::Status ChannelState::CheckSavable(CheckpointKind) const {
  ENTRAIN_RETURN_IF_ERROR(parts_.jobs.CheckNotStarted());
  return parts_.quota.added() == 0
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   absl::StrCat(parts_.quota.added(),
                                " micro-batches have been added since the last install, and what "
                                "is computed in between is not part of a checkpoint"));
}

// Must be called first in a save or a load. Drains the worker, then checks that all ranks may
// continue.
absl::Status ChannelState::Prepare(AllRanks& all, CheckpointKind kind, absl::Status mine) {
  ENTRAIN_RETURN_IF_ERROR(parts_.jobs.worker().Drain());
  mine.Update(CheckKind(parts_.options, kind));
  mine.Update(CheckSavable(kind));
  return all.Agree(mine);
}

absl::Status ChannelState::Save(const CheckpointOptions& given) {
  CheckpointOptions options = given;
  options.overwrite |= continues_;
  bool repeated = false;
  const auto save = [&](AllRanks& all, std::string*) -> absl::Status {
    options.takes_over = std::exchange(repeated, true);
    ENTRAIN_RETURN_IF_ERROR(Prepare(all, options.kind, CheckOptions(options)));
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    StateList state(slab(), options.kind);
    VisitState(state);
    return SaveState(all, PartOf(slab(), parts_.options), options,
                     parts_.round.state().progress().commits(), state);
  };
  std::string unused;
  return MakeJointCall("save", options.timeout_ns, save, &unused);
}

// Makes a call of all ranks, and repeats it after losses (joint_calls.h).
absl::Status ChannelState::MakeJointCall(absl::string_view doing, int64_t timeout_ns,
                                         JointCalls::Attempt attempt, std::string* result) {
  ENTRAIN_RETURN_IF_ERROR(parts_.failure.status());
  Quieten();
  const auto everybody = [&] { return AllRanks(ranks().comm(), nullptr, timeout_ns); };
  const auto lost = [&] { return ranks().Lost(); };
  const auto recover = [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(parts_.jobs.worker().Wait(
        parts_.jobs.worker().Post([this] { return parts_.round.Recover(); })));
    Quieten();
    return absl::OkStatus();
  };
  const JointCalls::Call call = {everybody, attempt, lost, recover};
  JointCalls::Outcome outcome =
      ranks().joint_calls().Make(parts_.round.state().progress().rounds(), call);
  const absl::Status status = Annotate(outcome.status, absl::StrCat("acco: ", doing));
  *result = std::move(outcome.result);
  return outcome.broken ? parts_.failure.Note(status) : status;
}

absl::Status ChannelState::Reduce(const JointReduction& reduction) {
  const auto reduce = [&](AllRanks& all, std::string* result) -> absl::Status {
    absl::Status mine = CheckReduction(reduction);
    mine.Update(parts_.jobs.worker().Drain());
    mine.Update(CheckSavable(CheckpointKind::kPortable));
    return all.Reduce(mine, reduction, result);
  };
  std::string result;
  ENTRAIN_RETURN_IF_ERROR(MakeJointCall("reduce", reduction.timeout_ns, reduce, &result));
  return Annotate(TakeReduced(result, reduction), "acco");
}

absl::StatusOr<std::unique_ptr<OpenState>> ChannelState::Open(CheckpointKind kind) {
  ENTRAIN_RETURN_IF_ERROR(parts_.failure.status());
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<OpenState>> {
    ENTRAIN_RETURN_IF_ERROR(parts_.jobs.worker().Drain());
    ranks().AwaitNewcomers();
    ENTRAIN_RETURN_IF_ERROR(CheckKind(parts_.options, kind));
    ENTRAIN_RETURN_IF_ERROR(CheckSavable(kind));
    auto list = std::make_unique<StateList>(slab(), kind);
    VisitState(*list);
    return OpenState::Make(this, AllRanks(ranks().comm(), nullptr, 0),
                           PartOf(slab(), parts_.options), std::move(list));
  };
  auto opened = open();
  return opened.ok() ? std::move(opened) : Annotate(opened.status(), "acco: state");
}

absl::Status ChannelState::Load(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(parts_.failure.status());
  Quieten();
  AllRanks all(ranks().comm(), nullptr, options.timeout_ns);
  StateList state(slab(), options.kind);
  return Restore(all, "load", CheckOptions(options), &state, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    if (options.kind == CheckpointKind::kPortable) {
      StateList exact(slab(), CheckpointKind::kExact);
      VisitState(exact);
      state.SetExact(exact);
    }
    return LoadState(all, PartOf(slab(), parts_.options), options, &state);
  });
}

absl::Status ChannelState::TakeUp(OpenState& state, int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(parts_.failure.status());
  Quieten();
  AllRanks all(ranks().comm(), nullptr, timeout_ns);
  StateList live(slab(), state.kind());
  const absl::Status status =
      Restore(all, "commit", absl::OkStatus(), &live, [&] { return state.GiveTo(all, &live); });
  state.TakeBack(&live);
  return status;
}

// Continues from the values that `fill` loads into the list. If a check or `fill` fails, the state
// is unchanged. A later error is permanent: all later calls of the channel return it.
absl::Status ChannelState::Restore(AllRanks& all, absl::string_view doing, absl::Status mine,
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
  continues_ = true;
  record_.Clear();
  state->Apply();
  RoundState& round = parts_.round.state();
  const ChannelRecord::Rounds rounds = record_.Read(state->kind(), round.progress());
  parts_.rule.Restore(rounds.kind == RoundKind::kEstimate);
  if (rounds.finished) {  // a stop that ended the saved run does not end this run
    round.progress().ForgetStops();
  }
  parts_.jobs.Restore(rounds.in_flight);
  RoundResult made = rounds.made;
  parts_.landed = {.result = rounds.landed, .finished = rounds.finished && round.progress().Done()};
  made.ranks = parts_.landed.result.ranks = ranks().comm()->size();
  made.joins = parts_.landed.result.joins = ranks().joins();
  round.Restore(made);
  if (const absl::Status copied = End(all, ranks().cut().RenewCopy(), doing); !copied.ok()) {
    return parts_.failure.NoteForAll(copied);
  }
  return state->kind() == CheckpointKind::kPortable ? GoOnFromMasters(all) : absl::OkStatus();
}

// Sets the parameters to the master parameters, and clears the accumulator.
absl::Status ChannelState::GoOnFromMasters(const AllRanks& all) {
  parts_.held = {};
  parts_.round.state().progress().ForgetStops();
  parts_.landed.finished = parts_.round.state().progress().Done();
  ZeroShared(parts_.accumulator.data(), parts_.accumulator.size());
  const absl::Status status = End(all, parts_.round.PublishMasters(), "load");
  return status.ok() ? status : parts_.failure.NoteForAll(status);
}

// Returns `status` as the caller sees it. If a communicator has ended because of it, the error is
// permanent: all later calls of the channel return it.
absl::Status ChannelState::End(const AllRanks& all, absl::Status status, absl::string_view doing) {
  status = Annotate(status, absl::StrCat("acco: ", doing));
  if (all.broken()) {
    return parts_.failure.Note(status);
  }
  return status;
}

}  // namespace entrain
