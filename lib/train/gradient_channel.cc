#include "lib/train/gradient_channel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/comm/agree.h"
#include "lib/kernels/kernels.h"
#include "lib/train/add_time.h"
#include "lib/train/penalty.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

constexpr int64_t kPiece = 4096;  // elements of a shard that are stepped at once, in the cache
// Of collectives that can be under way together.
constexpr int64_t kCountsTag = 0, kDataTag = 1;

std::vector<NamedValue> SharedOptions(const ChannelOptions& o) {
  return {{"method", static_cast<double>(o.method)},
          {"count", static_cast<double>(o.count)},
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
          {"limit", static_cast<double>(o.limit)}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientChannel>> GradientChannel::Create(
    Communicator& comm, const ChannelOptions& options) {
  const auto create = [&]() -> absl::StatusOr<std::unique_ptr<GradientChannel>> {
    ENTRAIN_RETURN_IF_ERROR(CheckOptions(options));
    ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> own, comm.Split(0, comm.rank()));
    ENTRAIN_RETURN_IF_ERROR(AgreeOn(*own, "the communicator", SharedOptions(options)));
    const std::vector<int64_t> layers = {options.count};
    ENTRAIN_ASSIGN_OR_RETURN(Slab slab, Slab::Make(layers, own->size(), own->rank()));
    std::unique_ptr<GradientChannel> channel(
        new GradientChannel(std::move(own), options, std::move(slab)));
    ENTRAIN_RETURN_IF_ERROR(channel->Allocate());
    return channel;
  };
  auto channel = create();
  return channel.ok() ? std::move(channel) : Annotate(channel.status(), "acco");
}

GradientChannel::GradientChannel(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
                                 Slab slab)
    : comm_(std::move(comm)),
      options_(options),
      slab_(std::move(slab)),
      method_(static_cast<int64_t>(options.method)) {}

GradientChannel::~GradientChannel() {
  if (in_flight_ && !over_.load(std::memory_order_acquire)) {
    comm_->Abort("acco: destroyed during a round");
  }
  courier_.Stop();
}

absl::Status GradientChannel::Allocate() {
  const SlabLayer& layer = slab_.layer(0);
  const DType params = options_.params_dtype;
  const int64_t widest = std::max(SizeOf(params), SizeOf(options_.wire_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(accumulator_,
                           OwnedBuffer::Allocate(layer.full * SizeOf(options_.grads_dtype)));
  ENTRAIN_ASSIGN_OR_RETURN(com_, OwnedBuffer::Allocate(layer.padded * widest));
  ENTRAIN_ASSIGN_OR_RETURN(master_,
                           OwnedBuffer::Allocate(layer.shard * SizeOf(options_.master_dtype())));
  std::memset(accumulator_.data(), 0, static_cast<size_t>(accumulator_.size()));
  const int arrays = options_.optimizer != nullptr ? options_.optimizer->state_arrays() : 0;
  for (int i = 0; i < arrays; ++i) {
    ENTRAIN_ASSIGN_OR_RETURN(state_.emplace_back(),
                             OwnedBuffer::Allocate(layer.shard * SizeOf(DType::kF32)));
    std::memset(state_.back().data(), 0, static_cast<size_t>(state_.back().size()));
  }
  ENTRAIN_RETURN_IF_ERROR(comm_->Broadcast(options_.params, layer.full, params, 0, Options()));
  base_bytes_ = comm_->stats().bytes_sent;
  BestKernels().cast(master_.data(), options_.master_dtype(),
                     static_cast<std::byte*>(options_.params) + layer.first * SizeOf(params),
                     params, layer.valid);
  return absl::OkStatus();
}

CallOptions GradientChannel::Options() const {
  return TimedCall(options_.timeout_ns, kDataTag, true);
}

absl::Status GradientChannel::Fail(const absl::Status& why) {
  status_.Update(why);
  return why;
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

absl::Status GradientChannel::Add(int64_t microbatches, int64_t tokens) {
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
  round_added_ += microbatches;
  held_.microbatches += microbatches;
  held_.tokens += tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientChannel::Poll() const {
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  const bool over = !in_flight_ || over_.load(std::memory_order_acquire);
  return Full() || (round_added_ >= Wanted() && over);
}

absl::Status GradientChannel::Stop() {
  ENTRAIN_RETURN_IF_ERROR(status_);
  stop_ = true;
  return absl::OkStatus();
}

absl::Status GradientChannel::Install() {
  const AddTime waiting(&exposed_ns_);
  ENTRAIN_RETURN_IF_ERROR(CheckRound());
  if (round_added_ < Wanted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("acco: install: ", round_added_, " of at least ", Wanted(),
                     " micro-batches of this round have been added"));
  }
  ENTRAIN_RETURN_IF_ERROR(Land());
  if (finished_) {
    dropped_ = held_.microbatches;
    round_added_ = 0;
    return absl::OkStatus();
  }
  const bool wait = Synchronous();
  HandOver();
  return wait ? Land() : absl::OkStatus();
}

// Takes what the round under way has made.
absl::Status GradientChannel::Land() {
  if (!in_flight_) {
    return absl::OkStatus();
  }
  if (job_ != 0) {  // else it was over when it was loaded
    const absl::Status status = courier_.Wait(job_);
    if (!status.ok()) {
      return Fail(status);
    }
  }
  in_flight_ = false;
  landed_ = made_;
  landed_.round_ns = round_ns_;
  std::memcpy(options_.params, com_.data(),
              static_cast<size_t>(options_.count * SizeOf(options_.params_dtype)));
  finished_ = commits_ && Done();
  return absl::OkStatus();
}

// What has been added begins to travel.
void GradientChannel::HandOver() {
  const bool halves = options_.method == DelayMethod::kAcco && !Synchronous();
  commits_ = !halves || second_half_;
  second_half_ = halves && !second_half_;
  previews_ = !commits_ || (options_.method == DelayMethod::kWp && !Synchronous());
  const int64_t count = options_.count;
  const int64_t element = SizeOf(options_.wire_dtype);
  BestKernels().cast(com_.data(), options_.wire_dtype, accumulator_.data(), options_.grads_dtype,
                     count);
  std::memset(com_.data() + count * element, 0,
              static_cast<size_t>((slab_.layer(0).padded - count) * element));
  sent_ = held_;
  sent_.stops = stop_ ? 1 : 0;
  if (commits_) {
    std::memset(accumulator_.data(), 0, static_cast<size_t>(accumulator_.size()));
    held_ = {};
  }
  round_added_ = 0;
  ++installs_;
  in_flight_ = true;
  over_.store(false, std::memory_order_relaxed);
  job_ = courier_.Post([this] {
    absl::Status status;
    {
      const AddTime working(&round_ns_);
      status = RunRound();
    }
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat("acco: round ", rounds_ + 1));
      comm_->EndWith(status);  // so that nobody waits for this rank
    }
    over_.store(true, std::memory_order_release);
    return status;
  });
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
  info.bytes_held = accumulator_.size() + com_.size() + master_.size();
  for (const OwnedBuffer& array : state_) {
    info.bytes_held += array.size();
  }
  return info;
}

// ---- The courier's side ------------------------------------------------------------------------

absl::Status GradientChannel::RunRound() {
  Counts all;
  ENTRAIN_RETURN_IF_ERROR(ShareCounts(&all));
  const double scale = 1 / static_cast<double>(all.microbatches);
  ChannelInfo now;
  now.lr = options_.schedule.At(Progress(options_.schedule.unit));
  now.clip_factor = 1;
  if (options_.clip_norm > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(now.grad_norm, Norm(scale));
    now.clip_factor = ClipFactor(now.grad_norm, options_.clip_norm);
  }
  const int64_t step = steps_ + 1;
  if (commits_) {
    ++steps_;
    gradients_ += all.microbatches;
    tokens_ += all.tokens;
    stops_ += all.stops;
  }
  // At the end everybody has the parameters themselves, not what may become of them.
  const bool preview = previews_ && !(commits_ && Done());
  if (options_.master_dtype() == DType::kF64) {
    StepShard<double>(step, scale * now.clip_factor, now.lr, preview);
  } else {
    StepShard<float>(step, scale * now.clip_factor, now.lr, preview);
  }
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(comm_->AllGather(Own(options_.params_dtype), com_.data(), slab_.layer(0).shard,
                                options_.params_dtype, Options()),
               "parameters"));
  now.rounds = ++rounds_;
  now.commits = steps_;
  now.gradients = gradients_;
  now.tokens = tokens_;
  now.committed = commits_;
  now.microbatches = all.microbatches;
  made_ = now;
  return absl::OkStatus();
}

// How many micro-batches there are, and the sum of their gradients, of which each rank has its shard; at once.
absl::Status GradientChannel::ShareCounts(Counts* all) {
  static_assert(sizeof(Counts) == 3 * sizeof(int64_t));
  Call counts;
  counts.kind = CallKind::kAllReduce;
  counts.dtype = DType::kI64;
  counts.count = 3;
  counts.in = {&sent_, sizeof(sent_)};
  counts.out = {all, sizeof(*all)};
  counts.options = TimedCall(options_.timeout_ns, kCountsTag, true);
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> shared, comm_->Start(counts));
  const SlabLayer& layer = slab_.layer(0);
  const int64_t element = SizeOf(options_.wire_dtype);
  Call scatter;
  scatter.kind = CallKind::kReduceScatter;
  scatter.dtype = options_.wire_dtype;
  scatter.count = layer.shard;
  scatter.in = {com_.data(), layer.padded * element};
  scatter.out = {Own(options_.wire_dtype), layer.shard * element};
  scatter.options = Options();
  const absl::Status status = Annotate(comm_->Run(scatter), "gradients");
  shared->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  ENTRAIN_RETURN_IF_ERROR(status);
  return Annotate(shared->status(), "counts");
}

// Of the mean gradient, the same bits on all ranks.
absl::StatusOr<double> GradientChannel::Norm(double scale) {
  const int64_t count = slab_.layer(0).valid;
  const int64_t element = SizeOf(options_.wire_dtype);
  double square = 0;
  float piece[kPiece];
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t here = std::min(kPiece, count - first);
    BestKernels().cast(piece, DType::kF32, Own(options_.wire_dtype) + first * element,
                       options_.wire_dtype, here);
    square += BestKernels().sum_of_squares(piece, here);
  }
  std::vector<double> all(static_cast<size_t>(comm_->size()));
  ENTRAIN_RETURN_IF_ERROR(
      Annotate(comm_->AllGather(&square, all.data(), 1, DType::kF64, Options()), "norm"));
  double sum = 0;
  for (const double one : all) {
    sum += one;
  }
  return std::sqrt(sum) * scale;
}

// Piece by piece, gradients become parameters in the same place. Where one kind of element is wider than the other, the order
// is such that nothing is written over before it is read.
template <typename T>
void GradientChannel::StepShard(int64_t step, double scale, double lr, bool preview) {
  const int64_t count = slab_.layer(0).valid;
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  const bool backward = SizeOf(options_.params_dtype) > SizeOf(options_.wire_dtype);
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = (backward ? pieces - 1 - i : i) * kPiece;
    StepPiece<T>(step, first, std::min(kPiece, count - first), scale, lr, preview);
  }
}

template <typename T>
void GradientChannel::StepPiece(int64_t step, int64_t first, int64_t count, double scale, double lr,
                                bool preview) {
  const Kernels& kernels = BestKernels();
  const DType type = options_.master_dtype();
  T grads[kPiece], estimate[kPiece];
  kernels.cast(grads, type, Own(options_.wire_dtype) + first * SizeOf(options_.wire_dtype),
               options_.wire_dtype, count);
  kernels.scale_any(type, grads, grads, count, scale);
  T* const master = reinterpret_cast<T*>(master_.data()) + first;
  if (commits_) {
    StepOnce(step, lr, first, count, grads, master, static_cast<T*>(nullptr));
  }
  if (preview) {
    StepOnce(commits_ ? step + 1 : step, lr, first, count, grads, master, estimate);
  }
  kernels.cast(Own(options_.params_dtype) + first * SizeOf(options_.params_dtype),
               options_.params_dtype, preview ? estimate : master, type, count);
}

// `out` null: a commit.
template <typename T>
void GradientChannel::StepOnce(int64_t step, double lr, int64_t first, int64_t count,
                               const T* grads, T* master, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    if (options_.optimizer != nullptr) {
      std::vector<float*> state;
      for (const OwnedBuffer& array : state_) {
        state.push_back(reinterpret_cast<float*>(array.data()) + first);
      }
      options_.optimizer->Step({.count = count,
                                .master = master,
                                .grads = grads,
                                .state = state,
                                .out = out,
                                .step = step,
                                .lr = lr},
                               out == nullptr ? Apply::kCommit : Apply::kPreview);
      return;
    }
  }
  options_.step(options_.user, out == nullptr ? 0 : 1, step, lr, static_cast<size_t>(first),
                static_cast<size_t>(count), grads, master, out);
}

}  // namespace entrain
