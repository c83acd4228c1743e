#include "lib/train/edit/layer_sync.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {
namespace {

// Returns an error unless the same layers train on all ranks. Ranks must take part in the same
// exchanges, even if they hold different parts of a layer.
absl::Status AgreeOnTraining(Communicator& comm, const char* name, const Slab& slab) {
  ENTRAIN_RETURN_IF_ERROR(AgreeOn(comm, name, {{"layers", static_cast<double>(slab.layers())}}));
  std::vector<NamedValue> trains;
  for (int l = 0; l < slab.layers(); ++l) {
    trains.push_back({absl::StrCat("layer ", l, " trains"), slab.layer(l).trains() ? 1.0 : 0.0});
  }
  return AgreeOn(comm, name, trains);
}

// Returns an error unless, for each layer, either all ranks of the tensor group hold the whole
// layer or none does.
absl::Status AgreeOnReplicated(Communicator& comm, const Slab& slab) {
  std::vector<NamedValue> replicated = {{"layers", static_cast<double>(slab.layers())}};
  ENTRAIN_RETURN_IF_ERROR(AgreeOn(comm, "the tensor group", replicated));
  replicated.clear();
  for (int l = 0; l < slab.layers(); ++l) {
    const SlabLayer& layer = slab.layer(l);
    replicated.push_back({absl::StrCat("elements of replicated layer ", l),
                          layer.replicated ? static_cast<double>(layer.full) : 0.0});
  }
  return AgreeOn(comm, "the tensor group", replicated);
}

absl::StatusOr<ExchangeGroups> MakeGroups(const Mesh& mesh, const LayerShards& shards,
                                          const FragmentSchedule& schedule,
                                          const EditOptions& options) {
  const Slab& slab = shards.slab();
  const auto type = static_cast<double>(shards.live().dtype);
  ExchangeGroups groups;
  groups.copies = mesh.length(Axis::kContext);
  groups.tensor = mesh.length(Axis::kTensor);
  if (groups.tensor > 1) {
    ENTRAIN_RETURN_IF_ERROR(AgreeOnReplicated(*mesh.comm(Axis::kTensor), slab));
  }
  struct Part {
    Axis axis;
    const char* name;
    std::shared_ptr<Communicator>* comm;
  };
  for (const Part& part : {Part{Axis::kModel, "the replica", &groups.model},
                           Part{Axis::kSync, "the sync group", &groups.sync}}) {
    if (mesh.length(part.axis) > 1) {
      const std::shared_ptr<Communicator>& comm = mesh.comm(part.axis);
      ENTRAIN_ASSIGN_OR_RETURN(*part.comm, comm->Split(0, comm->rank()));
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(**part.comm, part.name, SharedOptions(options)));
      if (!options.identity.empty()) {
        ENTRAIN_RETURN_IF_ERROR(AgreeOn(**part.comm, part.name, options.identity));
      }
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(**part.comm, part.name, {{"bound parameters' type", type}}));
      ENTRAIN_RETURN_IF_ERROR(AgreeOnTraining(**part.comm, part.name, slab));
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(**part.comm, part.name, schedule.Named()));
    }
  }
  if (groups.copies > 1 || groups.tensor > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(groups.held, Copies::Find(mesh, *groups.model));
  }
  return groups;
}

absl::StatusOr<std::unique_ptr<SyncTrigger>> MakeTrigger(const ExchangeGroups& groups,
                                                         const FragmentSchedule* schedule,
                                                         const EditOptions& options) {
  if (!options.use_async) {
    return std::make_unique<StepTrigger>(options.local_sgd_warmup_steps, schedule,
                                         options.overlap_steps);
  }
  std::shared_ptr<Communicator> replica;
  if (groups.model != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(replica, groups.model->Split(0, groups.model->rank()));
  }
  return std::make_unique<TimeTrigger>(options, std::move(replica));
}

absl::Status CheckShards(const Mesh& mesh, const LayerShards& shards, const EditOptions& options) {
  if (!shards.live().bound()) {
    return absl::FailedPreconditionError("shard: no parameters are bound yet");
  }
  if (shards.mesh().get() != &mesh) {
    return absl::InvalidArgumentError("shard: it was made on another mesh");
  }
  if (shards.slab().training().empty()) {
    return absl::InvalidArgumentError("shard: no layer of it trains, there is nothing to exchange");
  }
  std::vector<int64_t> counts;
  for (const int layer : shards.slab().training()) {
    counts.push_back(shards.slab().layer(layer).full);
  }
  ENTRAIN_RETURN_IF_ERROR(CheckFragments(options, shards.slab()));
  return CheckDensity(options, shards.slab().slots(), counts);
}

// Returns true if the worker must handle losses and rounds of other replicas while it has no job.
bool Watches(const EditMembership& membership) {
  return membership.recovery() != nullptr || membership.closer() != nullptr;
}

// Returns the CPUs of this rank, if the ranks of the mesh share those of their hosts evenly.
int UsualThreads(const Mesh& mesh) {
  const std::shared_ptr<Communicator> whole = mesh.whole();
  const int cores = whole != nullptr ? whole->cores()
                                     : std::min(mesh.comm(Axis::kModel)->cores(),
                                                mesh.comm(Axis::kSync)->cores());
  return std::min(cores, KernelThreads::kMost);
}

absl::Status CheckMayRepair(const EditOptions& options, const ExchangeGroups& groups) {
  if (options.anchor_check != AnchorCheck::kRepair) {
    return absl::OkStatus();
  }
  const auto refuse = [&options](absl::string_view why) {
    return RefuseOption("anchor_check", static_cast<int32_t>(options.anchor_check), why);
  };
  if (groups.held.exist()) {
    return refuse(
        "(repair) does not go with ranks that hold copies (the context and tensor axes), which are "
        "compared within a replica");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<LayerSync>> LayerSync::Create(std::shared_ptr<Mesh> mesh,
                                                             std::shared_ptr<LayerShards> shards,
                                                             const EditOptions& options) {
  return Make(std::move(mesh), std::move(shards), options, std::nullopt);
}

absl::StatusOr<std::shared_ptr<LayerSync>> LayerSync::Make(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options,
                                                           std::optional<int64_t> wait_ns) {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<LayerSync>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_RETURN_IF_ERROR(CheckShards(*mesh, *shards, options));
    auto schedule = std::make_unique<const FragmentSchedule>(options, shards->slab());
    ENTRAIN_ASSIGN_OR_RETURN(ExchangeGroups groups, MakeGroups(*mesh, *shards, *schedule, options));
    ENTRAIN_ASSIGN_OR_RETURN(auto trigger, MakeTrigger(groups, schedule.get(), options));
    std::shared_ptr<LayerSync> edit(
        new LayerSync(std::move(mesh), std::move(shards), options, std::move(groups),
                      std::move(schedule), std::move(trigger)),
        Free);
    ENTRAIN_RETURN_IF_ERROR(edit->Start(wait_ns));
    return edit;
  };
  auto edit = create();
  return edit.ok() ? std::move(edit) : Annotate(edit.status(), "edit");
}

absl::StatusOr<std::shared_ptr<LayerSync>> LayerSync::Join(std::shared_ptr<Mesh> mesh,
                                                           std::shared_ptr<LayerShards> shards,
                                                           const EditOptions& options,
                                                           int64_t wait_ns) {
  absl::Status status;
  if (wait_ns < 0) {
    status = RefuseOption("wait_ns", wait_ns, "is negative");
  } else if (options.admit == Admit::kNone) {
    status = RefuseOption("admit", 0, "(none) takes nobody in; set exchange, as the members do");
  } else if (mesh->length(Axis::kSync) > 1) {
    status = RefuseOption("mesh", mesh->length(Axis::kSync),
                          "replicas; a mesh that joins has the ranks of one replica");
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(status, "edit"));
  return Make(std::move(mesh), std::move(shards), options, wait_ns);
}

LayerSync::LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
                     const EditOptions& options, ExchangeGroups groups,
                     std::unique_ptr<const FragmentSchedule> schedule,
                     std::unique_ptr<SyncTrigger> trigger)
    : mesh_(std::move(mesh)),
      shards_(std::move(shards)),
      options_(options),
      schedule_(std::move(schedule)),
      trigger_(std::move(trigger)),
      counter_(options.local_sgd_warmup_steps, options.gradient_accumulation_steps,
               shards_->slab().layers(), schedule_->all(), shards_->stages().begun()),
      behind_(shards_->slab().layers()),
      threads_(options.threads > 0 ? options.threads : UsualThreads(*mesh_)),
      exchange_(shards_->slab(), shards_->live(), options, std::move(groups)),
      results_(mesh_->length(Axis::kSync)),
      membership_(
          {*mesh_, *shards_, options_, *schedule_, *trigger_, counter_, exchange_, results_}) {}

// If `wait_ns` is set, this replica is a newcomer.
absl::Status LayerSync::Start(std::optional<int64_t> wait_ns) {
  const int layers = shards_->slab().layers();
  ENTRAIN_RETURN_IF_ERROR(CheckMayRepair(options_, exchange_.members().now()));
  ENTRAIN_RETURN_IF_ERROR(exchange_.Reserve());
  ENTRAIN_RETURN_IF_ERROR(wait_ns.has_value() ? membership_.Join(*wait_ns) : membership_.Start());
  base_ = exchange_.members().bytes_sent();
  StartWorker();
  runner_.emplace(*worker_, exchange_, results_, error_, membership_.recovery(),
                  membership_.admission(), membership_.closer(), schedule_->all(),
                  membership_.background());
  gates_.emplace(*worker_, error_, layers, options_.prefetch);
  state_.emplace(EditState::Parts{*mesh_, *shards_, options_, *schedule_, *trigger_, exchange_,
                                  counter_, behind_, results_, *gates_, *runner_, error_, *worker_,
                                  membership_.closer()},
                 /*continues=*/wait_ns.has_value());
  ENTRAIN_RETURN_IF_ERROR(shards_->SetGate(&*gates_));
  if (Watches(membership_)) {  // the first job starts the thread
    worker_->Post([] { return absl::OkStatus(); });
  }
  return shards_->SetGradients(counter_.in_warmup() ? GradientScope::kGlobal
                                                    : GradientScope::kLocal);
}

void LayerSync::StartWorker() {
  absl::AnyInvocable<absl::Status()> watch;
  if (Watches(membership_)) {
    watch = [this] { return runner_->Watch(); };
  }
  worker_ = std::make_unique<Worker>(
      TimeLimit(options_.timeout_ns, *mesh_),
      [this](const absl::Status& late) {
        EditInfo so_far;
        results_.Fill(&so_far);
        runner_->Fail(Annotate(late, absl::StrCat("edit: exchange ", so_far.syncs + 1, " on rank ",
                                                  mesh_->comm(Axis::kModel)->rank(), " of replica ",
                                                  mesh_->coordinate(Axis::kSync))));
      },
      [this](absl::string_view name) { mesh_->comm(Axis::kModel)->NoteFunction(this, name); },
      std::move(watch), &threads_);
}

// Lets rounds behind the caller's steps end (Worker::kLastRoundNs). A round that the caller has
// not waited for is of no use to it, but it is to the other ranks.
void LayerSync::AwaitRoundsBehind() {
  const bool calls_back = options_.outer_step != nullptr || options_.outer_schedule != nullptr;
  const auto over = std::make_shared<absl::Notification>();
  worker_->WhenDone(worker_->last(), [over](const absl::Status&) { over->Notify(); });
  over->WaitForNotificationWithTimeout(
      absl::Nanoseconds(calls_back ? Worker::kReportNs : Worker::kLastRoundNs));
}

void LayerSync::Free(LayerSync* edit) {
  if (!edit->state_.has_value()) {  // Start has failed
    delete edit;
    return;
  }
  if (edit->gates_->FirstPending() < 0 && !edit->behind_.AllArrived() &&
      edit->error_.status().ok()) {
    edit->AwaitRoundsBehind();
  }
  if (edit->gates_->FirstPending() >= 0 || !edit->behind_.AllArrived()) {
    edit->runner_->Fail(absl::AbortedError("edit: destroyed during an exchange"));
  }
  if (edit->error_.status().ok()) {
    // The caller has waited for all exchanges, but other ranks may still need this rank's worker.
    edit->worker_->Drain().IgnoreError();
  }
  // StopSoon returns false if a callback of the caller has not returned.
  const bool stopped = edit->worker_->StopSoon();
  // Removes the gate now, in the caller's thread, because the caller may continue to use the
  // shards.
  if (edit->shards_->gate() == &*edit->gates_) {
    edit->shards_->SetGate(nullptr).IgnoreError();
  }
  if (stopped) {
    delete edit;
  } else {
    edit->worker_->Leave([edit] { delete edit; });
  }
}

void LayerSync::Abandon() {
  const absl::Status why = absl::AbortedError("edit: destroyed during a call");
  trigger_->GiveUp(why);
  if (membership_.background() != nullptr) {
    membership_.background()->GiveUp(why);
  }
  runner_->Fail(why);
  worker_->Abandon(why);
}

// ---- Steps and layers --------------------------------------------------------------------------

absl::StatusOr<bool> LayerSync::BeginForward(bool training, bool first_microbatch) {
  const AddTime stopwatch(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  if (!training) {
    return false;
  }
  if (counter_.left()) {
    return absl::FailedPreconditionError("edit: begin_forward with training after leave");
  }
  state_->Move();
  ENTRAIN_RETURN_IF_ERROR(counter_.BeginMicrobatch(first_microbatch));
  if (first_microbatch) {
    shards_->stages().BeginStep();
  }
  if (!counter_.in_warmup()) {
    ENTRAIN_RETURN_IF_ERROR(shards_->SetGradients(GradientScope::kLocal));
  }
  return first_microbatch ? StartIfDue() : false;
}

absl::Status LayerSync::WaitLayer(int layer) {
  ENTRAIN_RETURN_IF_ERROR(gates_->CheckLayer(layer));
  return gates_->WaitOpen(layer);
}

absl::Status LayerSync::WhenLayerOver(int layer, Worker::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(gates_->CheckLayer(layer));
  gates_->WhenOver(layer, std::move(then));
  return absl::OkStatus();
}

absl::Status LayerSync::EndStep() {
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  state_->Move();
  const int without = gates_->FirstWithoutWait();
  if (without >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: end_step ", counter_.step(),
                     ": nobody has waited for the exchange of layer ", without));
  }
  ENTRAIN_RETURN_IF_ERROR(counter_.CheckAllMicrobatches());
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(shards_->stages().CheckReduced(), absl::StrCat("edit: end_step ", counter_.step())));
  shards_->stages().BeginStep();
  counter_.EndStep(shards_->stages().begun());
  if (membership_.admission() != nullptr) {
    membership_.admission()->NoteStep(counter_.step());
  }
  AdmitNow();
  return absl::OkStatus();
}

absl::Status LayerSync::RequestSync() {
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  counter_.Request();
  return absl::OkStatus();
}

absl::Status LayerSync::Wish(uint64_t flags) {
  counter_.Wish(flags);
  return error_.status();
}

// Other ranks wait in the exchange of the first layer that this rank's worker must not begin yet.
// If there is no such layer, they wait in the next rendezvous. Makes this call fail on these ranks.
void LayerSync::Refused(const absl::Status& why) const {
  const int held_back = gates_->FirstHeldBack();
  Call call;
  call.kind = CallKind::kAllGather;
  call.options.user_tag = held_back >= 0 ? held_back : shards_->slab().layers();
  const ExchangeGroups groups = exchange_.members().groups();
  for (const auto& comm : {groups.model, groups.sync}) {
    if (comm != nullptr) {
      comm->Refused(call, why);
    }
  }
}

// ---- Information -------------------------------------------------------------------------------

EditInfo LayerSync::info() const {
  EditInfo info;
  info.steps = counter_.step();
  info.in_warmup = counter_.in_warmup();
  info.exposed_ns = exposed_ns_ + gates_->waited_ns();
  info.sync_ns = runner_->sync_ns();
  const ExchangeBytes sent = exchange_.members().bytes_sent();
  info.bytes_sent_shard = sent.model - base_.model;
  info.bytes_sent_sync = sent.sync - base_.sync;
  results_.Fill(&info);
  info.replica = exchange_.members().me();
  return info;
}

absl::Status LayerSync::CopyAnchor(void* anchor, DType to) const {
  if (!exchange_.anchors().exist()) {
    return absl::FailedPreconditionError("edit: there are no anchors");
  }
  if (UnderWay()) {
    return absl::FailedPreconditionError("edit: an exchange is under way");
  }
  const absl::MutexLock lock(&runner_->between_late_rounds());
  return worker_->RunHere([&] {
    for (int l = 0; l < shards_->slab().layers(); ++l) {
      const SlabLayer& layer = shards_->slab().layer(l);
      const LayerArrays& live = shards_->live();
      const void* const from =
          layer.trains() ? static_cast<const void*>(exchange_.anchors().anchor(l)) : live.param(l);
      auto* const at = static_cast<std::byte*>(anchor) + layer.offset * SizeOf(to);
      SharedKernels().cast(at, to, from, layer.trains() ? DType::kF32 : live.dtype, layer.shard);
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<LayerReport> LayerSync::Report(int layer) const {
  ENTRAIN_RETURN_IF_ERROR(gates_->CheckLayer(layer));
  ENTRAIN_RETURN_IF_ERROR(error_.status());
  if (!shards_->slab().layer(layer).trains()) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: layer: ", layer, " has nothing that trains and is never exchanged"));
  }
  if (UnderWay()) {
    return absl::FailedPreconditionError("edit: an exchange is under way");
  }
  // With option admit, does not wait for the admission of newcomers.
  ENTRAIN_RETURN_IF_ERROR(membership_.admission() == nullptr ? worker_->Drain()
                                                             : worker_->Wait(gates_->JobOf(layer)));
  const absl::MutexLock lock(&runner_->between_late_rounds());
  if (exchange_.verdicts().report(layer).norms.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: there was no exchange of layer ", layer, " yet"));
  }
  return exchange_.verdicts().report(layer);
}

}  // namespace entrain
