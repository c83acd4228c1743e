#include "lib/train/gradient_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/kernels/kernels.h"
#include "lib/train/add_time.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

// Elements of a shard that are stepped at once: what stays in the cache; what is worth a launch.
constexpr int64_t kHostPiece = 4096, kDevicePiece = 1 << 20;

std::vector<NamedValue> SharedOptions(const ChannelOptions& o) {
  return {{"method", static_cast<double>(o.method)},
          {"count", static_cast<double>(o.count)},
          {"memory", o.at.device == nullptr ? 0.0 : 1.0},
          {"params_dtype", static_cast<double>(o.params_dtype)},
          {"wire_dtype", static_cast<double>(o.wire_dtype)},
          {"warmup_rounds", static_cast<double>(o.warmup_rounds)},
          {"clip_norm", o.clip_norm},
          {"schedule unit", static_cast<double>(o.schedule.unit)},
          {"lr", o.schedule.lr},
          {"min_lr", o.schedule.min_lr},
          {"schedule_warmup", static_cast<double>(o.schedule.warmup)},
          {"schedule_total", static_cast<double>(o.schedule.total)},
          {"limit_unit", static_cast<double>(o.limit_unit)},
          {"limit", static_cast<double>(o.limit)},
          {"group_count", static_cast<double>(o.groups.size())}};
}

// When all ranks have as many.
std::vector<NamedValue> SharedGroups(const ChannelOptions& o) {
  std::vector<NamedValue> values;
  for (size_t i = 0; i < o.groups.size(); ++i) {
    const ParameterGroup& group = o.groups[i];
    const std::string name = absl::StrCat("groups[", i, "].");
    values.push_back({name + "first", static_cast<double>(group.first)});
    values.push_back({name + "count", static_cast<double>(group.count)});
    values.push_back({name + "lr_scale", group.lr_scale});
    values.push_back(
        {name + "optim: state arrays",
         static_cast<double>((group.optimizer ? group.optimizer : o.optimizer)->state_arrays())});
  }
  return values;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GradientChannel>> GradientChannel::Create(
    Communicator& comm, const ChannelOptions& options) {
  const auto create = [&]() -> absl::StatusOr<std::shared_ptr<GradientChannel>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> own, comm.Split(0, comm.rank()));
    ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", SharedOptions(options)));
    if (!options.groups.empty()) {
      ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", SharedGroups(options)));
    }
    const std::vector<int64_t> layers = {options.count};
    ENTRAIN_ASSIGN_OR_RETURN(Slab slab, Slab::Make(layers, own->size(), own->rank()));
    ChannelOptions known = options;
    known.at.limit_ns = options.timeout_ns > 0 ? options.timeout_ns : own->timeout_ns();
    std::shared_ptr<GradientChannel> channel(
        new GradientChannel(std::move(own), known, std::move(slab)), Free);
    ENTRAIN_RETURN_IF_ERROR(channel->FailAll(channel->Allocate()));
    return channel;
  };
  auto channel = create();
  return channel.ok() ? std::move(channel) : Annotate(channel.status(), "acco");
}

GradientChannel::GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
                                 Slab slab)
    : comm_(std::move(comm)),
      options_(options),
      groups_(AllGroups(options)),
      slab_(std::move(slab)),
      method_(static_cast<int64_t>(options.method)),
      worker_(
          options_.at.limit_ns,
          [this](const absl::Status& why) {
            comm_->EndWith(Annotate(why, absl::StrCat("acco: rank ", comm_->rank())));
          },
          [this](absl::string_view name) { comm_->NoteFunction(this, name); }) {
  for (const ParameterGroup& group : options_.groups) {
    const Optimizer& rule = group.optimizer ? *group.optimizer : *options_.optimizer;
    saved_groups_.push_back({group.first, group.count, rule.state_arrays()});
  }
}

void GradientChannel::Free(GradientChannel* channel) {
  const int64_t over = channel->over_.load(std::memory_order_acquire);
  if (channel->in_flight_ && over < channel->installs_) {
    channel->comm_->Abort("acco: destroyed during a round");
  } else {
    channel->worker_.Drain().IgnoreError();
  }
  if (channel->worker_.StopSoon()) {
    delete channel;
  } else {
    channel->worker_.Leave([channel] { delete channel; });
  }
}

GradientChannel::~GradientChannel() {
  SettleRound().IgnoreError();  // nothing uses the arrays any more
}

absl::Status GradientChannel::Allocate() {
  const SlabLayer& layer = slab_.layer(0);
  Device* const device = options_.at.device;
  ENTRAIN_ASSIGN_OR_RETURN(own_, OwnStream::Make(options_.at));
  const DType params = options_.params_dtype, master = options_.master_dtype();
  const int64_t widest = std::max(SizeOf(params), SizeOf(options_.wire_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(
      accumulator_, PlacedArray::Allocate(device, layer.full * SizeOf(options_.grads_dtype)));
  ENTRAIN_ASSIGN_OR_RETURN(com_, PlacedArray::Allocate(device, layer.padded * widest));
  ENTRAIN_ASSIGN_OR_RETURN(master_, PlacedArray::Allocate(device, layer.shard * SizeOf(master)));
  piece_ = std::min(layer.shard, device == nullptr ? kHostPiece : kDevicePiece);
  ENTRAIN_ASSIGN_OR_RETURN(room_, PlacedArray::Allocate(device, 2 * piece_ * SizeOf(master)));
  int arrays = 0;
  for (const ParameterGroup& group : groups_) {
    arrays = std::max(arrays, group.optimizer->state_arrays());
  }
  for (int i = 0; i < arrays; ++i) {
    ENTRAIN_ASSIGN_OR_RETURN(state_.emplace_back(),
                             PlacedArray::Allocate(device, layer.shard * SizeOf(DType::kF32)));
  }
  ENTRAIN_RETURN_IF_ERROR(FinishStream(options_.at, Deadline::After(options_.at.limit_ns)));
  ENTRAIN_RETURN_IF_ERROR(
      comm_->Broadcast(options_.params, layer.full, params, 0, Options(/*on_stream=*/false)));
  if (device != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(Rehearse());
  }
  base_bytes_ = comm_->stats().bytes_sent;
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] {
    ZeroArray(accumulator_.data(), accumulator_.size());
    for (const PlacedArray& array : state_) {
      ZeroArray(array.data(), array.size());
    }
    CurrentKernels().cast(master_.data(), master,
                          static_cast<std::byte*>(options_.params) + layer.first * SizeOf(params),
                          params, layer.valid);
  }));
  return own_->Lead();
}

// Calls find the memory that they need where they start or at their first time, as do kernels that
// give a number; while a stream waits for a call nobody should have to. So once all of a round,
// with whatever is in the arrays, while no stream waits.
absl::Status GradientChannel::Rehearse() {
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [this] {
    CurrentKernels().sum_of_squares(reinterpret_cast<const float*>(room_.data()), 1);
  }));
  for (Call call : {GradientsCall(), ParametersCall()}) {
    call.options = Options(/*on_stream=*/false);
    ENTRAIN_RETURN_IF_ERROR(Annotate(comm_->Run(call), "rehearsal"));
  }
  // One begins before the other is over; they differ in the width of elements.
  Call wider = SizeOf(options_.params_dtype) >= SizeOf(options_.wire_dtype) ? ParametersCall()
                                                                            : GradientsCall();
  wider.options = Options();
  return comm_->Reserve(wider, 2);
}

// Of a round's data. On a device without a tag, so that they may go all ways
// (lib/device/calls/device_runner.h).
CallOptions GradientChannel::Options(bool on_stream) const {
  CallOptions options = TimedCall(options_.timeout_ns, on_device() ? -1 : kDataTag, true);
  options.device = on_device();
  options.on_stream = on_device() && on_stream;
  options.stream = options.on_stream ? own_->at().stream : nullptr;
  return options;
}

absl::Status GradientChannel::Fail(const absl::Status& why) {
  status_.Update(why);
  return why;
}

// What only this rank has met.
absl::Status GradientChannel::FailAll(const absl::Status& why) {
  if (!why.ok()) {
    comm_->EndWith(why);
  }
  return Fail(why);
}

// ---- The caller's side -------------------------------------------------------------------------

bool GradientChannel::Synchronous() const {
  return options_.method == DelayMethod::kZero1 || installs_ < options_.warmup_rounds;
}

int64_t GradientChannel::Wanted() const {
  const auto round = static_cast<size_t>(installs_);
  return round < options_.scripted.size() ? options_.scripted[round] : options_.min_microbatches;
}

bool GradientChannel::Full() const {
  const int64_t most = options_.scripted.empty() ? options_.max_microbatches : Wanted();
  return most > 0 && round_added_ >= most;
}

absl::Status GradientChannel::CheckRound() const {
  ENTRAIN_RETURN_IF_ERROR(status_);
  if (finished_) {
    return absl::FailedPreconditionError("acco: the run has ended");
  }
  if (!options_.scripted.empty() && installs_ >= static_cast<int64_t>(options_.scripted.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "acco: scripted_counts has ", options_.scripted.size(), " rounds, and all are over"));
  }
  return absl::OkStatus();
}

absl::Status GradientChannel::SetStream(StreamHandle stream) {
  if (!on_device()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "acco: stream %p: the channel was made for host memory, which has no stream", stream));
  }
  return Annotate(own_->SetCallers(stream), "acco");
}

absl::Status GradientChannel::Add(int64_t microbatches, int64_t tokens) {
  ENTRAIN_RETURN_IF_ERROR(CheckNotStarted());
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  if (microbatches < 1 || tokens < 0) {
    return absl::InvalidArgumentError(
        microbatches < 1 ? absl::StrCat("acco: microbatches: ", microbatches, " is less than 1")
                         : absl::StrCat("acco: tokens: ", tokens, " is negative"));
  }
  const int64_t most = options_.scripted.empty() ? options_.max_microbatches : Wanted();
  if (most > 0 && round_added_ + microbatches > most) {
    return absl::FailedPreconditionError(absl::StrCat("acco: microbatches: ", microbatches,
                                                      " more after ", round_added_,
                                                      " would be above ", most, " of this round"));
  }
  ++moves_;
  round_added_ += microbatches;
  held_.microbatches += microbatches;
  held_.tokens += tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientChannel::Poll() const {
  const bool over =
      !in_flight_ || over_.load(std::memory_order_acquire) >= installs_ || !worker_.status().ok();
  if (started_) {
    ENTRAIN_RETURN_IF_ERROR(status_);
    return over;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  return Full() || (round_added_ >= Wanted() && over);
}

absl::Status GradientChannel::Stop() {
  ENTRAIN_RETURN_IF_ERROR(status_);
  stop_ = true;
  return absl::OkStatus();
}

void GradientChannel::Abandon() {
  comm_->EndWith(absl::AbortedError("acco: destroyed during a call"));
}

// What others wait for is the next round.
void GradientChannel::Refused(const absl::Status& why) const {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.options.user_tag = kCountsTag;
  comm_->Refused(call, why);
}

absl::Status GradientChannel::CheckEnough() const {
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  return round_added_ >= Wanted() ? absl::OkStatus()
                                  : absl::FailedPreconditionError(absl::StrCat(
                                        "acco: install: ", round_added_, " of at least ", Wanted(),
                                        " micro-batches of this round have been added"));
}

absl::Status GradientChannel::CheckNotStarted() const {
  return started_ ? absl::FailedPreconditionError(
                        "acco: wait has started a synchronous round; install first")
                  : absl::OkStatus();
}

// Before a wait: Install would otherwise wait for the round that it starts.
absl::Status GradientChannel::StartSynchronous() {
  ++moves_;
  ENTRAIN_RETURN_IF_ERROR(started_ ? status_ : CheckEnough());
  if (!started_ && !in_flight_ && Synchronous()) {
    ENTRAIN_RETURN_IF_ERROR(HandOver());
    started_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientChannel::Wait(Deadline until) {
  const AddTime waiting(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(StartSynchronous());
  if (!in_flight_ || job_ == 0) {
    return true;
  }
  absl::StatusOr<bool> over = worker_.WaitUntil(job_, until);
  if (over.ok() && *over && on_device() && commits_ && Done()) {
    over = worker_.WaitUntil(job_ + 1, until);  // as Land
  }
  if (!over.ok()) {
    return Fail(over.status());
  }
  return over;
}

absl::Status GradientChannel::WhenReady(WorkerThread::Continuation then) {
  ENTRAIN_RETURN_IF_ERROR(StartSynchronous());
  if (!in_flight_ || job_ == 0) {
    then(absl::OkStatus());
    return absl::OkStatus();
  }
  worker_.WhenDone(job_, [this, then = std::move(then)](const absl::Status& status) mutable {
    if (status.ok() && on_device() && commits_ && Done()) {
      worker_.WhenDone(job_ + 1, std::move(then));  // as Land
    } else {
      then(status);
    }
  });
  return absl::OkStatus();
}

absl::Status GradientChannel::Install() {
  const AddTime waiting(&exposed_ns_);
  ++moves_;
  if (started_) {
    ENTRAIN_RETURN_IF_ERROR(status_);
    started_ = false;
    return Land();
  }
  ENTRAIN_RETURN_IF_ERROR(CheckEnough());
  ENTRAIN_RETURN_IF_ERROR(Land());
  if (finished_) {
    dropped_ = held_.microbatches;
    round_added_ = 0;
    return absl::OkStatus();
  }
  const bool wait = Synchronous();
  ENTRAIN_RETURN_IF_ERROR(HandOver());
  return wait ? Land() : absl::OkStatus();
}

// Takes what the round under way has made.
absl::Status GradientChannel::Land() {
  if (!in_flight_) {
    return absl::OkStatus();
  }
  if (job_ != 0) {  // else it was over when it was loaded
    absl::Status status = worker_.Wait(job_);
    if (status.ok() && commits_ && Done()) {
      status = worker_.Drain();  // no later call would have the error of the second job
    }
    if (!status.ok()) {
      return Fail(status);
    }
  }
  in_flight_ = false;
  landed_ = made_;
  landed_.round_ns = round_ns_.load(std::memory_order_relaxed);
  finished_ = commits_ && Done();
  absl::Status taken = own_->Lead();
  if (taken.ok()) {
    taken = ComputeAt(own_->callers(), [&] {
      CopyArray(options_.params, com_.data(), options_.count * SizeOf(options_.params_dtype));
    });
  }
  return FailAll(Annotate(taken, "acco: install"));
}

// What has been added begins to travel.
absl::Status GradientChannel::HandOver() {
  const bool halves = options_.method == DelayMethod::kAcco && !Synchronous();
  commits_ = !halves || second_half_;
  second_half_ = halves && !second_half_;
  previews_ = !commits_ || (options_.method == DelayMethod::kWp && !Synchronous());
  ENTRAIN_RETURN_IF_ERROR(FailAll(Annotate(PassOn(), "acco: install")));
  sent_ = held_;
  sent_.stops = stop_ ? 1 : 0;
  if (commits_) {
    held_ = {};
  }
  round_added_ = 0;
  ++installs_;
  in_flight_ = true;
  PostRound();
  return absl::OkStatus();
}

// The gradients, into what travels.
absl::Status GradientChannel::PassOn() {
  const int64_t count = options_.count;
  const int64_t element = SizeOf(options_.wire_dtype);
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->callers(), [&] {
    CurrentKernels().cast(com_.data(), options_.wire_dtype, accumulator_.data(),
                          options_.grads_dtype, count);
    ZeroArray(com_.data() + count * element, (slab_.layer(0).padded - count) * element);
    if (commits_) {
      ZeroArray(accumulator_.data(), accumulator_.size());
    }
  }));
  return own_->Follow();
}

// One job; on a device a second one, for what the first has enqueued.
void GradientChannel::PostRound() {
  const auto post = [this](bool last, absl::Status (GradientChannel::*run)()) {
    return worker_.Post([this, last, run] {
      uint64_t spent = 0;
      absl::Status status;
      {
        const AddTime working(&spent);
        status = (this->*run)();
      }
      round_ns_.fetch_add(spent, std::memory_order_relaxed);
      if (!status.ok()) {
        comm_->EndWith(status);  // so that nobody waits for this rank
      }
      if (last || !status.ok()) {
        over_.fetch_add(1, std::memory_order_release);
      }
      return status;
    });
  };
  job_ = post(!on_device(), &GradientChannel::RunRound);
  if (on_device()) {
    post(true, &GradientChannel::SettleRound);
  }
}

int64_t GradientChannel::Progress(ProgressUnit unit) const {
  return unit == ProgressUnit::kCommits  ? steps_
         : unit == ProgressUnit::kTokens ? tokens_
                                         : gradients_;
}

bool GradientChannel::Done() const {
  return stops_ > 0 || (options_.limit > 0 && Progress(options_.limit_unit) >= options_.limit);
}

ChannelInfo GradientChannel::info() const {
  ChannelInfo info = landed_;
  info.dropped = dropped_;
  info.finished = finished_;
  info.exposed_ns = exposed_ns_;
  info.bytes_sent = comm_->stats().bytes_sent - base_bytes_;
  info.bytes_held = accumulator_.size() + com_.size() + master_.size() + room_.size();
  for (const PlacedArray& array : state_) {
    info.bytes_held += array.size();
  }
  return info;
}

}  // namespace entrain
