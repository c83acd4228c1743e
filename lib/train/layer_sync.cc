#include "lib/train/layer_sync.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/device/registry.h"
#include "lib/kernels/kernels.h"
#include "lib/train/add_time.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

// Ranks of a replica take part in the same exchanges, also those that hold other layers of it.
absl::Status AgreeOnTraining(Communicator& comm, const char* name, const Slab& slab) {
  ENTRAIN_RETURN_IF_ERROR(AgreeOn(comm, name, {{"layers", static_cast<double>(slab.layers())}}));
  std::vector<NamedValue> trains;
  for (int l = 0; l < slab.layers(); ++l) {
    trains.push_back({absl::StrCat("layer ", l, " trains"), slab.layer(l).trains() ? 1.0 : 0.0});
  }
  return AgreeOn(comm, name, trains);
}

// Ranks along the tensor axis hold different parts of a layer, or all of them the same.
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

absl::StatusOr<Exchange::Groups> MakeGroups(const Mesh& mesh, const LayerShards& shards,
                                            const FragmentSchedule& schedule,
                                            const EditOptions& options) {
  const Slab& slab = shards.slab();
  const auto type = static_cast<double>(shards.live().dtype);
  Exchange::Groups groups;
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

absl::StatusOr<std::unique_ptr<SyncTrigger>> MakeTrigger(const Exchange::Groups& groups,
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
  return std::make_unique<TimeTrigger>(options.local_sgd_warmup_steps, options.interval_ns(),
                                       options.clock, std::move(replica), options.timeout_ns);
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

}  // namespace

absl::StatusOr<std::shared_ptr<LayerSync>> LayerSync::Create(std::shared_ptr<Mesh> mesh,
                                                             std::shared_ptr<LayerShards> shards,
                                                             const EditOptions& options) {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<LayerSync>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_RETURN_IF_ERROR(CheckShards(*mesh, *shards, options));
    auto schedule = std::make_unique<const FragmentSchedule>(options, shards->slab());
    ENTRAIN_ASSIGN_OR_RETURN(Exchange::Groups groups,
                             MakeGroups(*mesh, *shards, *schedule, options));
    ENTRAIN_ASSIGN_OR_RETURN(auto trigger, MakeTrigger(groups, schedule.get(), options));
    std::unique_ptr<DeviceRoom> room;
    if (shards->room() != nullptr) {
      room = DeviceRoom::Beside(*shards->room(), TimeLimit(options.timeout_ns, *mesh));
    }
    std::shared_ptr<LayerSync> edit(
        new LayerSync(std::move(mesh), std::move(shards), options, std::move(groups),
                      std::move(schedule), std::move(trigger), std::move(room)),
        Free);
    ENTRAIN_RETURN_IF_ERROR(edit->StartCourier());
    ENTRAIN_RETURN_IF_ERROR(edit->shards_->SetGate(edit.get()));
    ENTRAIN_RETURN_IF_ERROR(edit->shards_->SetGradients(
        options.local_sgd_warmup_steps > 0 ? GradientScope::kGlobal : GradientScope::kLocal));
    return edit;
  };
  auto edit = create();
  return edit.ok() ? std::move(edit) : Annotate(edit.status(), "edit");
}

LayerSync::LayerSync(std::shared_ptr<Mesh> mesh, std::shared_ptr<LayerShards> shards,
                     const EditOptions& options, Exchange::Groups groups,
                     std::unique_ptr<const FragmentSchedule> schedule,
                     std::unique_ptr<SyncTrigger> trigger, std::unique_ptr<DeviceRoom> room)
    : mesh_(std::move(mesh)),
      shards_(std::move(shards)),
      options_(options),
      schedule_(std::move(schedule)),
      trigger_(std::move(trigger)),
      layers_(shards_->slab().layers()),
      room_(std::move(room)),
      unshared_(static_cast<size_t>(layers_), 0),
      begun_behind_(static_cast<size_t>(layers_), -1),
      jobs_(static_cast<size_t>(layers_), 0),
      exchange_(shards_->slab(), shards_->live(), options, std::move(groups), room_.get()),
      states_(static_cast<size_t>(layers_)),
      courier_(
          TimeLimit(options.timeout_ns, *mesh_),
          [this](const absl::Status& why) { Fail(Late(why)); },
          [this](absl::string_view name) { mesh_->comm(Axis::kModel)->NoteFunction(this, name); }) {
  reductions_ = shards_->reductions();
  base_shard_ = BytesSent(false);
  base_sync_ = BytesSent(true);
}

absl::Status LayerSync::StartCourier() {
  if (room_ != nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(
        onto_, DeviceCourier::Make(room_.get(), [this](const absl::Status& why) {
          Fail(absl::StartsWith(why.message(), "edit: ") ? why : Annotate(why, "edit"));
        }));
  }
  return exchange_.Reserve();
}

void LayerSync::Free(LayerSync* edit) {
  const auto over = [](const std::shared_ptr<Round>& round) {
    return round->arrived.load(std::memory_order_acquire);
  };
  const std::deque<std::shared_ptr<Round>>& behind = edit->behind_;
  if (edit->FirstPending() >= 0 || !std::all_of(behind.begin(), behind.end(), over)) {
    edit->Fail(absl::AbortedError("edit: destroyed during an exchange"));
  }
  const bool stopped = edit->StopCourier();
  // The caller's thread, which may go on with the shards.
  if (edit->shards_->gate() == edit) {
    edit->shards_->SetGate(nullptr).IgnoreError();
  }
  if (stopped) {
    delete edit;
  } else if (edit->onto_ != nullptr) {
    edit->onto_->Leave([edit] { delete edit; });
  } else {
    edit->courier_.Leave([edit] { delete edit; });
  }
}

// False: a step of the caller's has not returned.
bool LayerSync::StopCourier() {
  if (onto_ == nullptr) {
    return courier_.StopSoon();
  }
  if (status().ok()) {
    onto_->Drain().IgnoreError();  // the caller has waited for it, and others count on it
  }
  return onto_->StopSoon(absl::AbortedError("edit: destroyed"));
}

absl::Status LayerSync::CheckLayer(int layer) const {
  if (layer < 0 || layer >= layers_) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: layer: ", layer, " is not in [0, ", layers_, ")"));
  }
  return absl::OkStatus();
}

absl::Status LayerSync::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void LayerSync::Abandon() {
  const absl::Status why = absl::AbortedError("edit: destroyed during a call");
  trigger_->GiveUp(why);
  Fail(why);
  onto_ == nullptr ? courier_.Abandon(why) : onto_->Abandon(why);
}

int LayerSync::FirstPending() const {
  absl::MutexLock lock(&mutex_);
  for (size_t l = 0; l < states_.size(); ++l) {
    if (states_[l].pending) {
      return static_cast<int>(l);
    }
  }
  return -1;
}

// ---- The caller's side -------------------------------------------------------------------------

absl::StatusOr<bool> LayerSync::BeginForward(bool training, bool first_microbatch) {
  const AddTime stopwatch(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(status());
  if (!training) {
    return false;
  }
  if (left_) {
    return absl::FailedPreconditionError("edit: begin_forward with training after leave");
  }
  ++moves_;
  ENTRAIN_RETURN_IF_ERROR(CountMicrobatch(first_microbatch));
  if (step_ >= options_.local_sgd_warmup_steps) {
    ENTRAIN_RETURN_IF_ERROR(shards_->SetGradients(GradientScope::kLocal));
  }
  return first_microbatch ? StartIfDue() : false;
}

absl::Status LayerSync::CountMicrobatch(bool first) {
  if (!first && microbatches_ + 1 > options_.gradient_accumulation_steps) {
    return absl::FailedPreconditionError(absl::StrCat(
        "edit: begin_forward of micro-batch ", microbatches_ + 1, " of step ", step_,
        ", but gradient_accumulation_steps is ", options_.gradient_accumulation_steps));
  }
  if (first) {
    shards_->BeginStep();
  }
  microbatches_ = first ? 1 : microbatches_ + 1;
  return absl::OkStatus();
}

absl::StatusOr<bool> LayerSync::StartIfDue() {
  ENTRAIN_RETURN_IF_ERROR(MergeSettled());
  if (options_.use_async && !behind_.empty()) {
    return false;
  }
  const absl::StatusOr<bool> due = trigger_->Due({step_, last_sync_step_, requested_});
  if (!due.ok()) {
    // The rank that could not be asked may wait for this one elsewhere.
    const absl::Status why = Annotate(due.status(), "edit");
    Fail(why);
    return why;
  }
  const bool insists = requested_;
  requested_ = false;
  if (!*due) {
    return false;
  }
  if (last_sync_step_ < 0) {
    ENTRAIN_RETURN_IF_ERROR(Annotate(StartFirst(), "edit"));
    return false;
  }
  wishes_ |= insists ? kInsist : 0;
  std::vector<int> layers = insists || options_.use_async
                                ? schedule_->all()
                                : schedule_->Due(step_ - options_.local_sgd_warmup_steps);
  if (options_.overlap_steps > 0 && !insists) {
    ENTRAIN_RETURN_IF_ERROR(StartBehind(std::move(layers)));
    return true;
  }
  ENTRAIN_RETURN_IF_ERROR(StartExchange(std::move(layers)));
  if (options_.use_async) {
    return Meet(0);
  }
  Post(&LayerSync::Judge, round_);
  BeginTurns();
  return true;
}

// The replicas left warm-up, or began, alike: there is nothing to exchange yet.
absl::Status LayerSync::StartFirst() {
  if (step_ != options_.local_sgd_warmup_steps) {
    // Replicas that have trained alone differ, and anchors made of them would differ for ever.
    return absl::FailedPreconditionError(
        absl::StrCat("the anchors must be made before the first step after warm-up, step ",
                     options_.local_sgd_warmup_steps, ", and this is step ", step_,
                     ": begin_forward was not called with training and first_microbatch set"));
  }
  if (!options_.plain()) {
    ENTRAIN_RETURN_IF_ERROR(OnStream([this] { return exchange_.CreateAnchors(); }));
  }
  last_sync_step_ = base_step_ = step_;
  tokens_ = 0;
  counted_ = false;
  trigger_->Met();
  {
    absl::MutexLock lock(&mutex_);
    finished_ = {.last_sync_step = step_};
    if (room_ == nullptr) {  // there they are still to be sealed
      finished_.anchor_checksum = exchange_.anchors().checksum();
    }
  }
  if (room_ != nullptr) {
    Post(&LayerSync::SealFirst, std::make_shared<Round>());
  }
  return absl::OkStatus();
}

// On a device: enqueues on the caller's stream.
absl::Status LayerSync::OnStream(absl::FunctionRef<absl::Status()> body) const {
  if (room_ == nullptr) {
    return body();
  }
  const KernelStream on(room_->device(), room_->callers(), room_->limit_ns());
  ENTRAIN_RETURN_IF_ERROR(body());
  return on.status();
}

absl::Status LayerSync::WaitLayer(int layer) {
  const AddTime stopwatch(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(CheckLayer(layer));
  return Block(layer);
}

// On a device: of the caller.
absl::Status LayerSync::HoldStream(int layer) {
  {
    absl::MutexLock lock(&mutex_);
    bool& pending = states_[static_cast<size_t>(layer)].pending;
    if (!std::exchange(pending, false)) {
      return status_;
    }
  }
  const absl::Status held = onto_->Hold(BegunSoFar(layer));
  const absl::Status why = status();
  return why.ok() ? Annotate(held, "edit") : why;
}

absl::Status LayerSync::WaitOver(int /*layer*/, uint32_t begun) {
  return begun == 0 ? status() : onto_->Wait(begun);
}

absl::Status LayerSync::WhenLayerOver(int layer, Courier::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(CheckLayer(layer));
  if (room_ == nullptr) {
    Expect(layer);
    WhenOpen(layer, std::move(then));
    return absl::OkStatus();
  }
  onto_->WhenDone(BegunSoFar(layer),
                  [this, then = std::move(then)](const absl::Status& why) mutable {
                    const absl::Status first = status();
                    then(first.ok() ? Annotate(why, "edit") : first);
                  });
  return absl::OkStatus();
}

void LayerSync::Expect(int layer) {
  if (room_ != nullptr) {
    return;  // nobody holds the courier back
  }
  bool exchanging = false;
  {
    absl::MutexLock lock(&mutex_);
    exchanging = std::any_of(states_.begin(), states_.end(),
                             [](const LayerState& state) { return state.pending; });
  }
  if (exchanging) {
    // The turn of the layer, or of the last one before it that has any.
    const std::vector<int>& order = round_->order;
    const auto next = std::upper_bound(order.begin(), order.end(), layer);
    const int turn = static_cast<int>(next - order.begin()) - 1;
    Allow(std::min(turn, round_->last_turn() - options_.prefetch) + options_.prefetch);
  }
}

absl::Status LayerSync::Block(int layer) {
  if (room_ != nullptr) {
    return HoldStream(layer);
  }
  Expect(layer);
  const auto at = static_cast<size_t>(layer);
  absl::Status late;
  {
    absl::MutexLock lock(&mutex_);
    const auto open = [this, at]()
                          ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !states_[at].pending; };
    late = courier_.Await(mutex_, absl::Condition(&open));
    if (late.ok()) {
      return status_;
    }
  }
  Fail(Late(late));
  return status();
}

// The courier has outlasted its limit.
absl::Status LayerSync::Late(const absl::Status& why) const {
  return Annotate(why, absl::StrCat("edit: exchange ", info().syncs + 1, " on rank ",
                                    mesh_->comm(Axis::kModel)->rank(), " of replica ",
                                    mesh_->coordinate(Axis::kSync)));
}

absl::Status LayerSync::EndStep() {
  ENTRAIN_RETURN_IF_ERROR(status());
  ++moves_;
  const int pending = FirstPending();
  if (pending >= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "edit: end_step ", step_, ": nobody has waited for the exchange of layer ", pending));
  }
  if (microbatches_ != options_.gradient_accumulation_steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: end_step ", step_, ": begin_forward was called for ", microbatches_,
                     " of the step's micro-batches, but gradient_accumulation_steps is ",
                     options_.gradient_accumulation_steps));
  }
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(shards_->CheckReduced(), absl::StrCat("edit: end_step ", step_)));
  shards_->BeginStep();
  ++step_;
  microbatches_ = 0;
  reductions_ = shards_->reductions();
  return absl::OkStatus();
}

// What others wait for is the layer that the courier may not take yet, or the next rendezvous.
void LayerSync::Refused(const absl::Status& why) const {
  Call call;
  call.kind = CallKind::kAllGather;
  call.options.user_tag = layers_;
  if (room_ == nullptr && FirstPending() >= 0) {
    absl::MutexLock lock(&mutex_);
    if (allowed_ < round_->last_turn()) {
      call.options.user_tag = round_->order[static_cast<size_t>(allowed_) + 1];
    }
  }
  for (const auto& comm : {exchange_.groups().model, exchange_.groups().sync}) {
    if (comm != nullptr) {
      comm->Refused(call, why);
    }
  }
}

absl::Status LayerSync::RequestSync() {
  ENTRAIN_RETURN_IF_ERROR(status());
  requested_ = true;
  return absl::OkStatus();
}

uint64_t LayerSync::BytesSent(bool sync) const {
  const auto& comm = sync ? exchange_.groups().sync : exchange_.groups().model;
  return comm == nullptr ? 0 : comm->stats().bytes_sent;
}

absl::Status LayerSync::Record(int64_t tokens, double metric, double weight) {
  if (tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("edit: tokens: ", tokens, " is negative"));
  }
  if (!(weight >= 0) || !std::isfinite(weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: weight: ", weight, " is not a finite number of at least 0"));
  }
  tokens_ += tokens;
  counted_ = true;
  if (weight > 0) {
    metric_sum_ += weight * metric;
    metric_weight_ += weight;
  }
  return absl::OkStatus();
}

absl::Status LayerSync::Wish(uint64_t flags) {
  wishes_ |= flags;
  return status();
}

EditInfo LayerSync::info() const {
  EditInfo info;
  info.steps = step_;
  info.in_warmup = step_ < options_.local_sgd_warmup_steps;
  info.exposed_ns = exposed_ns_;
  info.sync_ns = sync_ns_.load(std::memory_order_relaxed);
  info.bytes_sent_shard = BytesSent(false) - base_shard_;
  info.bytes_sent_sync = BytesSent(true) - base_sync_;
  absl::MutexLock lock(&mutex_);
  info.syncs = finished_.syncs;
  info.last_sync_step = finished_.last_sync_step;
  info.anchor_checksum = finished_.anchor_checksum;
  info.rejections = finished_.rejections;
  info.rollbacks = finished_.rollbacks;
  info.rendezvous = met_;
  double sum = 0, weight = 0;
  for (const Standing& one : standings_) {
    info.wishes |= one.flags & (kWantCheckpoint | kWantStop);
    sum += one.metric_sum;
    weight += one.metric_weight;
  }
  info.metric = sum / weight;  // 0 / 0 is the NaN that is promised
  return info;
}

std::vector<Standing> LayerSync::standings() const {
  absl::MutexLock lock(&mutex_);
  return standings_;
}

absl::Status LayerSync::CopyAnchor(void* anchor, DType to) const {
  if (!exchange_.anchors().exist()) {
    return absl::FailedPreconditionError("edit: there are no anchors");
  }
  if (UnderWay()) {
    return absl::FailedPreconditionError("edit: an exchange is under way");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckOnDevice("anchor", anchor));
  return OnStream([&] {
    for (int l = 0; l < layers_; ++l) {
      const SlabLayer& layer = shards_->slab().layer(l);
      const LayerArrays& live = shards_->live();
      const void* const from =
          layer.trains() ? static_cast<const void*>(exchange_.anchors().anchor(l)) : live.param(l);
      auto* const at = static_cast<std::byte*>(anchor) + layer.offset * SizeOf(to);
      CurrentKernels().cast(at, to, from, layer.trains() ? DType::kF32 : live.dtype, layer.shard);
    }
    return absl::OkStatus();
  });
}

absl::Status LayerSync::CheckOnDevice(const char* name, const void* array) const {
  if (room_ == nullptr) {
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, ProcessDevices());
  ENTRAIN_ASSIGN_OR_RETURN(const Devices::Place place, devices->PlaceOf(array));
  return place.kind == MemoryKind::kDevice && place.device == &room_->device()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrFormat("edit: %s %p is not memory of device %d, as memory 1 says", name,
                                   array, room_->device().ordinal()));
}

absl::StatusOr<LayerReport> LayerSync::Report(int layer) const {
  ENTRAIN_RETURN_IF_ERROR(CheckLayer(layer));
  ENTRAIN_RETURN_IF_ERROR(status());
  if (!shards_->slab().layer(layer).trains()) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: layer: ", layer, " has nothing that trains and is never exchanged"));
  }
  if (UnderWay()) {
    return absl::FailedPreconditionError("edit: an exchange is under way");
  }
  if (onto_ != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(onto_->Drain());  // nobody else has waited for it
  }
  if (exchange_.report(layer).norms.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("edit: there was no exchange of layer ", layer, " yet"));
  }
  return exchange_.report(layer);
}

void LayerSync::WhenOpen(int layer, Continuation then) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    LayerState& state = states_[static_cast<size_t>(layer)];
    if (state.pending) {
      state.then.push_back(std::move(then));
      return;
    }
    status = status_;
  }
  then(status);
}

}  // namespace entrain
