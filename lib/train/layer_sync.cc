#include "lib/train/layer_sync.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

// Two layers in flight keep the link busy while one of them is finished.
constexpr int kInFlight = 2;

// Adds its own lifetime to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(uint64_t* total) : total_(total) {}
  ~Stopwatch() { *total_ += static_cast<uint64_t>(Clock::Real().Now() - start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  uint64_t* const total_;
  const int64_t start_ = Clock::Real().Now();
};

// Ranks of a replica take part in the same exchanges, also those that hold other layers of it.
absl::Status AgreeOnTraining(Communicator& comm, const char* name, const Slab& slab) {
  ENTRAIN_RETURN_IF_ERROR(AgreeOn(comm, name, {{"layers", static_cast<double>(slab.layers())}}));
  std::vector<NamedValue> trains;
  for (int l = 0; l < slab.layers(); ++l) {
    trains.push_back({absl::StrCat("layer ", l, " trains"), slab.layer(l).trains() ? 1.0 : 0.0});
  }
  return AgreeOn(comm, name, trains);
}

absl::StatusOr<Exchange::Groups> MakeGroups(const Mesh& mesh, const Slab& slab,
                                            const EditOptions& options) {
  Exchange::Groups groups;
  groups.copies = mesh.length(Axis::kContext);
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
      ENTRAIN_RETURN_IF_ERROR(AgreeOnTraining(**part.comm, part.name, slab));
    }
  }
  return groups;
}

absl::Status CheckShards(const Mesh& mesh, const LayerShards& shards) {
  if (shards.params() == nullptr) {
    return absl::FailedPreconditionError("shard: no slabs are bound yet");
  }
  if (shards.mesh().get() != &mesh) {
    return absl::InvalidArgumentError("shard: it was made on another mesh");
  }
  if (shards.slab().training().empty()) {
    return absl::InvalidArgumentError("shard: no layer of it trains, there is nothing to exchange");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerSync>> LayerSync::Create(std::shared_ptr<Mesh> mesh,
                                                             LayerShards* shards,
                                                             const EditOptions& options) {
  const auto create = [&]() -> absl::StatusOr<std::unique_ptr<LayerSync>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_RETURN_IF_ERROR(CheckShards(*mesh, *shards));
    ENTRAIN_ASSIGN_OR_RETURN(Exchange::Groups groups, MakeGroups(*mesh, shards->slab(), options));
    std::unique_ptr<LayerSync> edit(
        new LayerSync(std::move(mesh), shards, options, std::move(groups)));
    ENTRAIN_RETURN_IF_ERROR(shards->SetGate(edit.get()));
    ENTRAIN_RETURN_IF_ERROR(shards->SetGradients(
        options.local_sgd_warmup_steps > 0 ? GradientScope::kGlobal : GradientScope::kLocal));
    return edit;
  };
  auto edit = create();
  return edit.ok() ? std::move(edit) : Annotate(edit.status(), "edit");
}

LayerSync::LayerSync(std::shared_ptr<Mesh> mesh, LayerShards* shards, const EditOptions& options,
                     Exchange::Groups groups)
    : mesh_(std::move(mesh)),
      shards_(shards),
      options_(options),
      trigger_(std::make_unique<StepTrigger>(options.local_sgd_warmup_steps,
                                             options.local_sgd_sync_interval)),
      layers_(shards->slab().layers()),
      order_(shards->slab().training()),
      exchange_(shards->slab(), shards->params(), options, std::move(groups)),
      states_(static_cast<size_t>(layers_)) {
  base_shard_ = BytesSent(false);
  base_sync_ = BytesSent(true);
}

LayerSync::~LayerSync() {
  if (FirstPending() >= 0) {
    Fail(absl::AbortedError("edit: destroyed during an exchange"));
  }
  courier_.Stop();
  if (shards_->gate() == this) {
    shards_->SetGate(nullptr).IgnoreError();
  }
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
  const Stopwatch stopwatch(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(status());
  if (!training) {
    return false;
  }
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
  microbatches_ = first ? 1 : microbatches_ + 1;
  return absl::OkStatus();
}

absl::StatusOr<bool> LayerSync::StartIfDue() {
  ENTRAIN_ASSIGN_OR_RETURN(const bool due, trigger_->Due({step_, last_sync_step_, requested_}));
  const bool first = last_sync_step_ < 0;
  if (due) {
    ENTRAIN_RETURN_IF_ERROR(Annotate(first ? StartFirst() : StartExchange(), "edit"));
  }
  requested_ = false;
  return due && !first;
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
    ENTRAIN_RETURN_IF_ERROR(exchange_.CreateAnchors());
  }
  last_sync_step_ = step_;
  absl::MutexLock lock(&mutex_);
  finished_ = {0, step_, exchange_.anchors().checksum()};
  return absl::OkStatus();
}

absl::Status LayerSync::StartExchange() {
  // A layer that was gathered before would keep its old parameters.
  ENTRAIN_RETURN_IF_ERROR(shards_->CheckAllReleased());
  // All layers of the last exchange are done, but the courier may not have put its things away.
  ENTRAIN_RETURN_IF_ERROR(courier_.Drain());
  {
    absl::MutexLock lock(&mutex_);
    for (const int layer : order_) {
      states_[static_cast<size_t>(layer)].pending = true;
    }
    allowed_ = -1;
  }
  next_begin_ = next_finish_ = 0;
  last_sync_step_ = step_;
  Post(&LayerSync::Judge);
  Allow(options_.prefetch - 1);
  return absl::OkStatus();
}

void LayerSync::Allow(int turn) {
  const int last = std::min(turn, static_cast<int>(order_.size()) - 1);
  {
    absl::MutexLock lock(&mutex_);
    if (last <= allowed_) {
      return;
    }
    allowed_ = last;
  }
  Post(&LayerSync::RunAllowed);
}

absl::Status LayerSync::WaitLayer(int layer) {
  const Stopwatch stopwatch(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(CheckLayer(layer));
  return Block(layer);
}

absl::Status LayerSync::Block(int layer) {
  const auto at = static_cast<size_t>(layer);
  bool exchanging = false;
  {
    absl::MutexLock lock(&mutex_);
    exchanging = std::any_of(states_.begin(), states_.end(),
                             [](const LayerState& state) { return state.pending; });
  }
  if (exchanging) {
    // The turn of the layer, or of the last one before it that has any.
    const auto next = std::upper_bound(order_.begin(), order_.end(), layer);
    const int turn = static_cast<int>(next - order_.begin()) - 1;
    const int turns = static_cast<int>(order_.size());
    Allow(std::min(turn, turns - 1 - options_.prefetch) + options_.prefetch);
  }
  absl::MutexLock lock(&mutex_);
  const auto open = [this, at]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !states_[at].pending; };
  mutex_.Await(absl::Condition(&open));
  return status_;
}

absl::Status LayerSync::EndStep() {
  ENTRAIN_RETURN_IF_ERROR(status());
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
  ++step_;
  microbatches_ = 0;
  return absl::OkStatus();
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
  return info;
}

absl::Status LayerSync::CopyAnchor(void* anchor, DType to) const {
  if (!exchange_.anchors().exist()) {
    return absl::FailedPreconditionError("edit: there are no anchors");
  }
  if (FirstPending() >= 0) {
    return absl::FailedPreconditionError("edit: an exchange is under way");
  }
  for (int l = 0; l < layers_; ++l) {
    const SlabLayer& layer = shards_->slab().layer(l);
    const float* const from =
        layer.trains() ? exchange_.anchors().anchor(l) : shards_->params() + layer.offset;
    auto* const at = static_cast<std::byte*>(anchor) + layer.offset * SizeOf(to);
    BestKernels().cast(at, to, from, DType::kF32, layer.shard);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerReport> LayerSync::Report(int layer) const {
  ENTRAIN_RETURN_IF_ERROR(CheckLayer(layer));
  ENTRAIN_RETURN_IF_ERROR(status());
  if (!shards_->slab().layer(layer).trains()) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: layer: ", layer, " has nothing that trains and is never exchanged"));
  }
  if (FirstPending() >= 0 || round_ == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "edit: ", round_ == 0 ? "there was no exchange yet" : "an exchange is under way"));
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

// ---- The courier's side ------------------------------------------------------------------------

void LayerSync::Post(absl::Status (LayerSync::*job)()) {
  courier_.Post([this, job] {
    uint64_t spent = 0;
    absl::Status status;
    {
      const Stopwatch stopwatch(&spent);
      status = (this->*job)();
    }
    sync_ns_.fetch_add(spent, std::memory_order_relaxed);
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat("edit: exchange ", round_ + 1));
      Fail(status);
    }
    return status;
  });
}

absl::Status LayerSync::Judge() {
  return Annotate(exchange_.Judge(static_cast<uint64_t>(round_)), "norms");
}

absl::Status LayerSync::RunAllowed() {
  while (true) {
    int allowed = 0;
    {
      absl::MutexLock lock(&mutex_);
      ENTRAIN_RETURN_IF_ERROR(status_);
      allowed = allowed_;
    }
    if (next_finish_ > allowed) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(RunTurn(allowed));
  }
}

// Finishes the next layer in turn, with the one after it begun if that is allowed.
absl::Status LayerSync::RunTurn(int allowed) {
  while (next_begin_ <= std::min(allowed, next_finish_ + kInFlight - 1)) {
    const int layer = order_[static_cast<size_t>(next_begin_)];
    ENTRAIN_RETURN_IF_ERROR(Annotate(exchange_.Begin(layer), absl::StrCat("layer ", layer)));
    ++next_begin_;
  }
  const int layer = order_[static_cast<size_t>(next_finish_)];
  ENTRAIN_RETURN_IF_ERROR(Annotate(exchange_.Finish(layer), absl::StrCat("layer ", layer)));
  ++next_finish_;
  Publish(layer, layer == order_.back());
  return absl::OkStatus();
}

void LayerSync::Publish(int layer, bool last) {
  std::vector<Continuation> then;
  if (last) {
    ++round_;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (last) {
      finished_ = {round_, last_sync_step_, exchange_.anchors().checksum()};
    }
    states_[static_cast<size_t>(layer)].pending = false;
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
