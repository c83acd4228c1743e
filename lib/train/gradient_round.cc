#include "lib/train/gradient_round.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/device/device.h"
#include "lib/kernels/kernels.h"
#include "lib/train/device_waits.h"
#include "lib/train/penalty.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {

GradientRound::GradientRound(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
                             const Slab& slab)
    : comm_(std::move(comm)),
      options_(options),
      layer_(slab.layer(0)),
      shard_(options, layer_),
      progress_(options.limit_unit, options.limit) {}

GradientRound::~GradientRound() {
  Settle().IgnoreError();
}

absl::Status GradientRound::Run(RoundKind kind, const RoundCounts& mine) {
  return Annotate(Make(kind, mine), absl::StrCat("acco: round ", progress_.rounds() + 1));
}

absl::Status GradientRound::Make(RoundKind kind, const RoundCounts& mine) {
  RoundCounts all;
  ENTRAIN_RETURN_IF_ERROR(ShareCounts(mine, &all));
  RoundResult now{.committed = Commits(kind), .microbatches = all.microbatches};
  ENTRAIN_RETURN_IF_ERROR(SetRate(&now));
  ENTRAIN_RETURN_IF_ERROR(Clip(all.microbatches, &now));
  if (Commits(kind)) {
    progress_.Commit(all);
  }
  Doing("step");
  absl::Status stepped;
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] {
    stepped = Step(kind, {com_.data(), all.microbatches, now.clip_factor}, now.lr);
  }));
  ENTRAIN_RETURN_IF_ERROR(stepped);
  Doing("parameters");
  ENTRAIN_RETURN_IF_ERROR(Carry("parameters", ParametersCall()));
  progress_.EndRound();
  now.rounds = progress_.rounds();
  now.commits = progress_.commits();
  now.gradients = progress_.gradients();
  now.tokens = progress_.tokens();
  result_ = now;
  return absl::OkStatus();
}

// The sums are A in an estimate, and A + B in the commit that follows it.
absl::Status GradientRound::Step(RoundKind kind, const GradientSum& sum, double lr) {
  const int64_t commits = progress_.commits();
  switch (kind) {
    case RoundKind::kEstimate:
      return shard_.Estimate(sum, {commits + 1, lr});
    case RoundKind::kPredict:
      // At the end of the run all ranks get the parameters themselves, not a prediction.
      return progress_.Done() ? shard_.Commit(sum, {commits, lr})
                              : shard_.Predict(sum, {commits, lr});
    case RoundKind::kCommit:
      break;
  }
  return shard_.Commit(sum, {commits, lr});
}

// Sums the counts while the gradients are summed.
absl::Status GradientRound::ShareCounts(RoundCounts mine, RoundCounts* all) {
  static_assert(sizeof(RoundCounts) == 3 * sizeof(int64_t));
  Call counts;
  counts.kind = CallKind::kAllReduce;
  counts.dtype = DType::kI64;
  counts.count = 3;
  counts.in = {&mine, sizeof(mine)};
  counts.out = {all, sizeof(*all)};
  counts.options = TimedCall(options_.timeout_ns, kCountsTag, true);
  Doing("counts and gradients");
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> shared, comm_->Start(counts));
  const absl::Status status = Carry("gradients", GradientsCall());
  shared->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  ENTRAIN_RETURN_IF_ERROR(status);
  return Annotate(shared->status(), "counts");
}

absl::Status GradientRound::SetRate(RoundResult* now) const {
  const int64_t progress = progress_.In(options_.schedule_unit);
  ENTRAIN_RETURN_IF_ERROR(WorkerThread::CallersFunction(
      "the schedule of rates", [&] { now->lr = RateAt(options_, progress); }));
  return now->lr >= 0 && std::isfinite(now->lr)
             ? absl::OkStatus()
             : absl::AbortedError(absl::StrCat("the schedule of rates returned ", now->lr,
                                               " at progress ", progress));
}

absl::Status GradientRound::Clip(int64_t microbatches, RoundResult* now) {
  if (options_.clip_norm > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(now->grad_norm, Norm(microbatches));
    now->clip_factor = ClipFactor(now->grad_norm, options_.clip_norm);
  }
  return absl::OkStatus();
}

// Returns the norm of the mean gradient, with the same bits on all ranks.
absl::StatusOr<double> GradientRound::Norm(int64_t microbatches) {
  double square = 0;
  ENTRAIN_RETURN_IF_ERROR(
      ComputeAt(own_->at(), [&] { square = shard_.SumOfSquares(com_.data()); }));
  std::vector<double> all(static_cast<size_t>(comm_->size()));
  Doing("norm");
  ENTRAIN_RETURN_IF_ERROR(Annotate(comm_->AllGather(&square, all.data(), 1, DType::kF64,
                                                    TimedCall(options_.timeout_ns, kDataTag, true)),
                                   "norm"));
  double sum = 0;
  for (const double one : all) {
    sum += one;
  }
  return std::sqrt(sum) * (1 / static_cast<double>(microbatches));
}

// Returns the call that sums the gradients and leaves each rank its shard of the sum.
Call GradientRound::GradientsCall() const {
  const int64_t element = SizeOf(options_.wire_dtype);
  Call scatter;
  scatter.kind = CallKind::kReduceScatter;
  scatter.dtype = options_.wire_dtype;
  scatter.count = layer_.shard;
  scatter.in = {com_.data(), layer_.padded * element};
  scatter.out = {com_.data() + layer_.first * element, layer_.shard * element};
  return scatter;
}

// Returns the call that gathers the parameters in place.
Call GradientRound::ParametersCall() const {
  const int64_t element = SizeOf(options_.params_dtype);
  Call gather;
  gather.kind = CallKind::kAllGather;
  gather.dtype = options_.params_dtype;
  gather.count = layer_.shard;
  gather.in = {com_.data() + layer_.first * element, layer_.shard * element};
  gather.out = {com_.data(), layer_.padded * element};
  return gather;
}

// Runs the call. On a device the call is only enqueued on the own stream; Settle waits for it.
absl::Status GradientRound::Carry(const char* what, Call call) {
  call.options = Options();
  if (!on_device()) {
    return Annotate(comm_->Run(call), what);
  }
  auto work = comm_->Start(call);
  if (work.ok()) {
    carried_.push_back({what, *std::move(work)});
  }
  return Annotate(work.status(), what);
}

absl::Status GradientRound::Settle() {
  absl::Status status;
  for (const Carried& one : std::exchange(carried_, {})) {
    WorkerThread::Doing(absl::StrCat("round ", progress_.rounds(), ": ", one.what));
    one.work->Wait(Deadline::Never(), true);  // the call has a deadline of its own
    status.Update(Annotate(one.work->status(), one.what));
  }
  return Annotate(status, absl::StrCat("acco: round ", progress_.rounds()));
}

void GradientRound::Doing(const char* what) const {
  WorkerThread::Doing(absl::StrCat("round ", progress_.rounds() + 1, ": ", what));
}

// Returns the options of the calls that carry a round's data. On a device these have no tag, so
// that they may use every path for device memory (lib/comm/device_calls.h).
CallOptions GradientRound::Options(bool on_stream) const {
  CallOptions options = TimedCall(options_.timeout_ns, on_device() ? -1 : kDataTag, true);
  options.device = on_device();
  options.on_stream = on_device() && on_stream;
  options.stream = options.on_stream ? own_->at().stream : nullptr;
  return options;
}

absl::Status GradientRound::Allocate() {
  Device* const device = options_.at.device;
  ENTRAIN_ASSIGN_OR_RETURN(own_, OwnStream::Make(options_.at));
  const DType params = options_.params_dtype;
  const int64_t widest = std::max(SizeOf(params), SizeOf(options_.wire_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(com_, PlacedArray::Allocate(device, layer_.padded * widest));
  ENTRAIN_RETURN_IF_ERROR(shard_.Allocate());
  ENTRAIN_RETURN_IF_ERROR(WaitForStream(options_.at, Deadline::After(options_.at.limit_ns)));
  ENTRAIN_RETURN_IF_ERROR(
      comm_->Broadcast(options_.params, layer_.full, params, 0, Options(/*on_stream=*/false)));
  if (device != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(WarmUp());
  }
  return ComputeAt(own_->at(),
                   [&] { shard_.Start(static_cast<const std::byte*>(options_.params)); });
}

// Calls allocate their memory when they start or run for the first time, as do kernels that return
// a number. No thread should have to allocate while a stream waits for a call. Therefore all calls
// of a round are run once now, on arbitrary data, while no stream waits.
absl::Status GradientRound::WarmUp() {
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [this] { shard_.SumOfSquares(com_.data()); }));
  for (Call call : {GradientsCall(), ParametersCall()}) {
    call.options = Options(/*on_stream=*/false);
    ENTRAIN_RETURN_IF_ERROR(Annotate(comm_->Run(call), "warm-up call"));
  }
  // One call begins before the other is over; their elements differ in size.
  Call wider = SizeOf(options_.params_dtype) >= SizeOf(options_.wire_dtype) ? ParametersCall()
                                                                            : GradientsCall();
  wider.options = Options();
  return comm_->Reserve(wider, 2);
}

absl::Status GradientRound::Take(const PlacedArray& accumulator, bool spent) {
  const int64_t count = options_.count, element = SizeOf(options_.wire_dtype);
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->callers(), [&] {
    CurrentKernels().cast(com_.data(), options_.wire_dtype, accumulator.data(),
                          options_.grads_dtype, count);
    ZeroArray(com_.data() + count * element, (layer_.padded - count) * element);
    if (spent) {
      ZeroArray(accumulator.data(), accumulator.size());
    }
  }));
  return own_->Follow();
}

absl::Status GradientRound::Publish() {
  ENTRAIN_RETURN_IF_ERROR(own_->Lead());
  return ComputeAt(own_->callers(), [&] {
    CopyArray(options_.params, com_.data(), options_.count * SizeOf(options_.params_dtype));
  });
}

absl::Status GradientRound::PublishMasters() {
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] { shard_.WriteTheta(com_.data()); }));
  Call gather = ParametersCall();
  gather.options = Options();
  ENTRAIN_RETURN_IF_ERROR(comm_->Run(gather));
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] {
    CopyArray(options_.params, com_.data(), options_.count * SizeOf(options_.params_dtype));
  }));
  return own_->Lead();
}

}  // namespace entrain
