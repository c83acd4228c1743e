// The state of EDiT. This file lists the arrays and numbers of a run, checks when they may be
// saved, and continues a run from loaded values.
#include "lib/train/edit/edit_state.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

// The only list of EDiT's state. If a new class has state, its VisitState must be called here.
void EditState::VisitState(StateVisitor& visitor) {
  const EditOptions& options = parts_.options;
  parts_.counter.VisitSteps(visitor);
  parts_.results.VisitState(visitor);
  parts_.counter.VisitStanding(visitor);
  if (options.overlap_steps > 0 && visitor.kind() == CheckpointKind::kExact) {
    parts_.behind.VisitState(visitor);
  }
  const bool leaves_over = options.fragments > 1 || options.overlap_merge == OverlapMerge::kMix;
  if (leaves_over && visitor.kind() == CheckpointKind::kExact) {
    parts_.counter.VisitUnshared(visitor);
  }
  parts_.exchange.VisitState(visitor);
  const LayerArrays& live = parts_.shards.live();
  for (int l = 0; l < slab().layers(); ++l) {
    const SlabLayer& layer = slab().layer(l);
    // The parameters of a layer with an anchor equal the anchor, so they are not saved again.
    if (layer.full > 0 && !(layer.trains() && parts_.exchange.anchors().exist())) {
      visitor.Layer("params", l, live.param(l), live.dtype);
    }
    if (layer.full > 0) {
      visitor.Array(absl::StrCat("live/", l), Holder::kRank, live.dtype, live.param(l),
                    layer.shard);
    }
  }
  callers_.VisitState(visitor);
}

absl::Status EditState::AddState(absl::string_view name, Holder holder, DType dtype, void* data,
                                 int64_t count) {
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  return Annotate(callers_.Add(name, holder, dtype, data, count), "edit");
}

// Checks that no layer waits for an exchange, and that no gradients of the current step have been
// reduced. Allows exchanges that overlap with further steps.
absl::Status EditState::CheckQuiet() const {
  const int pending = parts_.gates.FirstPending();
  if (pending >= 0) {
    return absl::FailedPreconditionError(absl::StrCat("the exchange of layer ", pending,
                                                      " is under way; wait for all layers first"));
  }
  return parts_.counter.CheckNoneReduced(parts_.shards.stages().begun());
}

// Before the caller has waited for all layers, the worker cannot recover from a loss, because it waits
// for these waits. So a joint call must not begin then. All replicas that make the call at the same
// place of their programs get this error. Leave waits for all layers itself.
absl::Status EditState::CheckWaited() const {
  const int without =
      parts_.counter.left() ? parts_.gates.FirstPending() : parts_.gates.FirstWithoutWait();
  return without < 0
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "the exchange of layer ", without, " is under way; wait for all layers first"));
}

absl::Status EditState::CheckNothingBehind() const {
  return parts_.behind.empty()
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   "an exchange runs behind these steps; request_sync makes one that "
                   "the layers wait for");
}

// Returns an error if a round was closed without this replica and the replica has not arrived since
// then. Until it arrives, its parameters lack the results of that round.
absl::Status EditState::CheckOnTime() const {
  const absl::MutexLock lock(&parts_.runner.between_late_rounds());
  return parts_.exchange.snapshots().late()
             ? absl::FailedPreconditionError(
                   "a round was closed without this replica; make a request_sync first, which all "
                   "replicas wait for")
             : absl::OkStatus();
}

// Checks that a checkpoint of this kind may be saved now. A portable checkpoint does not contain
// the replicas' training since the last exchange. An exact checkpoint also contains exchanges that
// overlap with further steps and have arrived. In A-EDiT, such exchanges must be merged before the
// save, because their time of arrival is not fixed.
absl::Status EditState::CheckRendezvous(CheckpointKind kind) const {
  ENTRAIN_RETURN_IF_ERROR(CheckQuiet());
  if (kind == CheckpointKind::kPortable || parts_.options.use_async) {
    ENTRAIN_RETURN_IF_ERROR(CheckNothingBehind());
  }
  ENTRAIN_RETURN_IF_ERROR(CheckOnTime());
  if (parts_.runner.missed()) {
    return absl::FailedPreconditionError(
        "this replica was late for a round; save after a request_sync, which all replicas wait "
        "for");
  }
  const int64_t step = parts_.counter.step();
  const int64_t last = kind == CheckpointKind::kPortable ? parts_.results.last_sync_step()
                                                         : parts_.counter.last_rendezvous_step();
  if (last == step) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", step, " has had no exchange (",
      last < 0 ? std::string("there was none yet") : absl::StrCat("the last was at step ", last),
      "); this call is for the time after a begin_forward that exchanges, when all layers are "
      "waited for"));
}

// Must be called after Drain, because an exchange under way may repair an anchor.
absl::Status EditState::CheckTrusted(CheckpointKind kind) const {
  const int repaired = parts_.exchange.rendezvous().distrusted();
  if (kind == CheckpointKind::kExact && repaired >= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the anchor of layer ", repaired,
        " was repaired, and the layer has had no exchange since; save after its next exchange"));
  }
  return absl::OkStatus();
}

absl::Status EditState::CheckSavable(CheckpointKind kind) const {
  ENTRAIN_RETURN_IF_ERROR(CheckRendezvous(kind));
  return CheckTrusted(kind);
}

// After a loss, describes the mesh of the remaining replicas.
ModelPart EditState::Part() const {
  ModelPart part = PartOf(parts_.mesh, slab());
  const ExchangeGroups groups = parts_.exchange.members().groups();
  part.mesh[static_cast<size_t>(Axis::kSync)] = groups.sync == nullptr ? 1 : groups.sync->size();
  part.identity = parts_.options.identity_text;
  return part;
}

AllRanks EditState::Everybody(int64_t timeout_ns) const {
  const ExchangeGroups groups = parts_.exchange.members().groups();
  return AllRanks(groups.model, groups.sync, timeout_ns);
}

// The worker must not run a job during an attempt: it may wait there for the recovery, which waits
// for the attempt.
absl::Status EditState::Save(const CheckpointOptions& given) {
  if (parts_.closer != nullptr) {  // includes the rounds for which this replica was late
    parts_.counter.SetRendezvous(parts_.results.rendezvous());
  }
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  ENTRAIN_RETURN_IF_ERROR(CheckNobodyLeaves());
  ENTRAIN_RETURN_IF_ERROR(Annotate(CheckWaited(), "edit: save"));
  absl::Status mine = CheckOptions(given);
  mine.Update(CheckRendezvous(given.kind));
  mine.Update(PrepareSnapshots());
  if (mine.ok()) {
    ENTRAIN_RETURN_IF_ERROR(parts_.worker.Drain());
    mine = CheckTrusted(given.kind);
  }
  std::string unused;
  CheckpointOptions options = given;
  options.overwrite |= continues_;
  bool repeated = false;
  return parts_.runner.MakeJointCall([&] { return Everybody(options.timeout_ns); },
                                     [&](AllRanks& all, std::string*) -> absl::Status {
                                       options.takes_over = std::exchange(repeated, true);
                                       ENTRAIN_RETURN_IF_ERROR(all.Agree(mine));
                                       ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
                                       StateList state(slab(), options.kind);
                                       VisitState(state);
                                       return SaveState(all, Part(), options, parts_.counter.step(),
                                                        state);
                                     },
                                     "save", &unused);
}

absl::Status EditState::Reduce(const JointReduction& reduction) {
  if (parts_.closer != nullptr) {  // as in Save
    parts_.counter.SetRendezvous(parts_.results.rendezvous());
  }
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  ENTRAIN_RETURN_IF_ERROR(CheckNobodyLeaves());
  ENTRAIN_RETURN_IF_ERROR(Annotate(CheckWaited(), "edit: reduce"));
  absl::Status mine = CheckReduction(reduction);
  mine.Update(CheckTogether());
  if (mine.ok()) {
    ENTRAIN_RETURN_IF_ERROR(parts_.worker.Drain());
  }
  std::string result;
  ENTRAIN_RETURN_IF_ERROR(parts_.runner.MakeJointCall(
      [&] { return Everybody(reduction.timeout_ns); },
      [&](AllRanks& all, std::string* reduced) { return all.Reduce(mine, reduction, reduced); },
      "reduce", &result));
  return Annotate(TakeReduced(result, reduction), "edit");
}

// A replica in Leave takes part in exchanges only, so a joint call would wait for it until the
// deadline. All replicas that have not left have the same table, so all of them return this error.
absl::Status EditState::CheckNobodyLeaves() const {
  const std::vector<Standing> all = parts_.results.standings();
  const bool leaves = std::any_of(all.begin(), all.end(),
                                  [](const Standing& one) { return (one.flags & kLeaving) != 0; });
  return leaves && !parts_.counter.left()
             ? absl::FailedPreconditionError(
                   "edit: a replica has left, and takes part in exchanges only; do this before any "
                   "replica leaves, or when all have left")
             : absl::OkStatus();
}

// Checks that all replicas are at the same place of the run, and that no newcomer has been admitted
// since the last rendezvous.
absl::Status EditState::CheckTogether() const {
  if (parts_.counter.in_warmup() || parts_.counter.left()) {
    return CheckQuiet();
  }
  return CheckRendezvous(CheckpointKind::kExact);
}

absl::Status EditState::Load(const CheckpointOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  AllRanks all = Everybody(options.timeout_ns);
  StateList state(slab(), options.kind);
  return Restore(all, "load", CheckOptions(options), &state, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(AgreeOnOptions(all, options));
    if (options.kind == CheckpointKind::kPortable) {
      StateList exact(slab(), CheckpointKind::kExact);
      VisitState(exact);
      state.SetExact(exact);
    }
    return LoadState(all, Part(), options, &state);
  });
}

absl::Status EditState::TakeUp(OpenState& state, int64_t timeout_ns) {
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  AllRanks all = Everybody(timeout_ns);
  StateList live(slab(), state.kind());
  const absl::Status status =
      Restore(all, "commit", absl::OkStatus(), &live, [&] { return state.GiveTo(all, &live); });
  state.TakeBack(&live);
  return status;
}

absl::StatusOr<std::unique_ptr<OpenState>> EditState::Open(CheckpointKind kind) {
  if (parts_.closer != nullptr) {  // the worker may run a round while the caller reads
    return absl::FailedPreconditionError(
        "edit: state: does not go with quorum and round_deadline; use save and load");
  }
  ENTRAIN_RETURN_IF_ERROR(parts_.error.status());
  // If there are no anchors, CreateAnchors makes the arrays for the list. OpenState::Commit sets
  // their values later.
  const bool creates = LacksAnchors();
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<OpenState>> {
    ENTRAIN_RETURN_IF_ERROR(CheckQuiet());
    ENTRAIN_RETURN_IF_ERROR(PrepareSnapshots());
    ENTRAIN_RETURN_IF_ERROR(parts_.worker.Drain());
    if (creates) {
      ENTRAIN_RETURN_IF_ERROR(
          parts_.worker.RunHere([this] { return parts_.exchange.CreateAnchors(); }));
    }
    auto list = std::make_unique<StateList>(slab(), kind);
    VisitState(*list);
    return OpenState::Make(this, Everybody(0), Part(), std::move(list));
  };
  auto opened = open();
  if (creates) {
    parts_.exchange.DropAnchors();
  }
  return opened.ok() ? std::move(opened) : Annotate(opened.status(), "edit: state");
}

// Replaces the state by the values that `fill` loads into `state`, and continues from them. If a
// check or `fill` fails, the old state is kept. After any later error the EDiT object has failed.
absl::Status EditState::Restore(AllRanks& all, absl::string_view doing, absl::Status mine,
                                StateList* state, absl::FunctionRef<absl::Status()> fill) {
  // Allocates the anchors into which `fill` loads. They are dropped if this fails.
  const bool creates = LacksAnchors();
  const auto restore = [&]() -> absl::Status {
    mine.Update(CheckQuiet());
    mine.Update(CheckOnTime());
    mine.Update(CheckNothingBehind());
    mine.Update(parts_.shards.CheckAllReleased());
    mine.Update(PrepareSnapshots());
    if (mine.ok() && creates) {
      mine = parts_.worker.RunHere([this] { return parts_.exchange.CreateAnchors(); });
    }
    ENTRAIN_RETURN_IF_ERROR(all.Agree(mine));
    ENTRAIN_RETURN_IF_ERROR(parts_.worker.Drain());
    VisitState(*state);
    ENTRAIN_RETURN_IF_ERROR(fill());
    return all.Agree(CheckLoaded(*state));
  };
  const absl::Status status = End(all, restore(), doing);
  if (!status.ok()) {
    if (creates) {
      parts_.exchange.DropAnchors();
    }
    return status;
  }
  ++moves_;
  continues_ = true;
  state->Apply();
  return parts_.worker.RunHere([&] {
    GoOnFrom(state->kind());
    return absl::OkStatus();
  });
}

// Prepares VisitState for exchanges that overlap with further steps.
absl::Status EditState::PrepareSnapshots() {
  parts_.behind.Prepare();
  return parts_.options.overlap_steps > 0 ? parts_.exchange.snapshots().Reserve()
                                          : absl::OkStatus();
}

void EditState::GoOnFrom(CheckpointKind kind) {
  const bool portable = kind == CheckpointKind::kPortable;  // the replicas have just exchanged
  parts_.exchange.Adopt(/*live=*/portable);
  parts_.counter.GoOn(/*exchanged=*/portable);
  parts_.behind.GoOn(parts_.schedule.all(),
                     [this](int layer) { parts_.exchange.snapshots().Use({layer}); });
  parts_.trigger.Met();  // a new interval begins at the saved rendezvous
  parts_.results.GoOn(parts_.counter.base_step(), parts_.exchange.anchors().checksum(),
                      parts_.counter.rendezvous());
}

absl::Status EditState::CheckLoaded(const StateList& state) const {
  return parts_.counter.CheckLoaded(state.Loaded("steps"), state.Loaded("last_sync_step"),
                                    state.Loaded("base_step"), state.Loaded("syncs"),
                                    state.Loaded("rendezvous"));
}

// Returns `status` as the caller sees it. If a communicator has ended because of it, the EDiT
// object has failed.
absl::Status EditState::End(const AllRanks& all, absl::Status status, absl::string_view doing) {
  status = Annotate(status, absl::StrCat("edit: ", doing));
  if (all.broken()) {
    parts_.runner.Fail(status);
  }
  return status;
}

}  // namespace entrain
