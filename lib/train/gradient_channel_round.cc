// A round of a gradient channel: what its worker does.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/gradient_channel.h"
#include "lib/train/penalty.h"
#include "lib/train/timed_call.h"

namespace entrain {

absl::Status GradientChannel::RunRound() {
  return Annotate(MakeRound(), absl::StrCat("acco: round ", rounds_ + 1));
}

absl::Status GradientChannel::MakeRound() {
  Counts all;
  ENTRAIN_RETURN_IF_ERROR(ShareCounts(&all));
  ChannelInfo now;
  const int64_t progress = Progress(options_.schedule.unit);
  ENTRAIN_RETURN_IF_ERROR(WorkerThread::CallersFunction(
      "the schedule of rates", [&] { now.lr = options_.schedule.At(progress); }));
  if (!(now.lr >= 0) || !std::isfinite(now.lr)) {
    return absl::AbortedError(
        absl::StrCat("the schedule of rates returned ", now.lr, " at progress ", progress));
  }
  now.clip_factor = 1;
  RoundStep round{.step = steps_ + 1, .scale = 1 / static_cast<double>(all.microbatches)};
  if (options_.clip_norm > 0) {
    ENTRAIN_ASSIGN_OR_RETURN(now.grad_norm, Norm(round.scale));
    now.clip_factor = ClipFactor(now.grad_norm, options_.clip_norm);
  }
  round.scale *= now.clip_factor;
  round.lr = now.lr;
  if (commits_) {
    ++steps_;
    gradients_ += all.microbatches;
    tokens_ += all.tokens;
    stops_ += all.stops;
  }
  WorkerThread::Doing(absl::StrCat("round ", rounds_ + 1, ": step"));
  // At the end everybody has the parameters themselves, not what may become of them.
  round.preview = previews_ && !(commits_ && Done());
  absl::Status stepped;
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] { stepped = StepShard(round); }));
  ENTRAIN_RETURN_IF_ERROR(stepped);
  WorkerThread::Doing(absl::StrCat("round ", rounds_ + 1, ": parameters"));
  ENTRAIN_RETURN_IF_ERROR(Carry("parameters", ParametersCall()));
  now.rounds = ++rounds_;
  now.commits = steps_;
  now.gradients = gradients_;
  now.tokens = tokens_;
  now.committed = commits_;
  now.microbatches = all.microbatches;
  made_ = now;
  return absl::OkStatus();
}

// The sum of the gradients, of which each rank has its shard.
Call GradientChannel::GradientsCall() const {
  const SlabLayer& layer = slab_.layer(0);
  const int64_t element = SizeOf(options_.wire_dtype);
  Call scatter;
  scatter.kind = CallKind::kReduceScatter;
  scatter.dtype = options_.wire_dtype;
  scatter.count = layer.shard;
  scatter.in = {com_.data(), layer.padded * element};
  scatter.out = {Own(options_.wire_dtype), layer.shard * element};
  return scatter;
}

// The parameters, in the same place.
Call GradientChannel::ParametersCall() const {
  const SlabLayer& layer = slab_.layer(0);
  const int64_t element = SizeOf(options_.params_dtype);
  Call gather;
  gather.kind = CallKind::kAllGather;
  gather.dtype = options_.params_dtype;
  gather.count = layer.shard;
  gather.in = {Own(options_.params_dtype), layer.shard * element};
  gather.out = {com_.data(), layer.padded * element};
  return gather;
}

// Done when this returns; on a device, when the own stream is so far, and SettleRound waits for it.
absl::Status GradientChannel::Carry(const char* what, Call call) {
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

absl::Status GradientChannel::SettleRound() {
  absl::Status status;
  for (const Carried& one : std::exchange(carried_, {})) {
    WorkerThread::Doing(absl::StrCat("round ", rounds_, ": ", one.what));
    one.work->Wait(Deadline::Never(), true);  // the call has a deadline of its own
    status.Update(Annotate(one.work->status(), one.what));
  }
  return Annotate(status, absl::StrCat("acco: round ", rounds_));
}

// How many micro-batches there are, while their gradients are summed.
absl::Status GradientChannel::ShareCounts(Counts* all) {
  static_assert(sizeof(Counts) == 3 * sizeof(int64_t));
  Call counts;
  counts.kind = CallKind::kAllReduce;
  counts.dtype = DType::kI64;
  counts.count = 3;
  counts.in = {&sent_, sizeof(sent_)};
  counts.out = {all, sizeof(*all)};
  counts.options = TimedCall(options_.timeout_ns, kCountsTag, true);
  WorkerThread::Doing(absl::StrCat("round ", rounds_ + 1, ": counts and gradients"));
  ENTRAIN_ASSIGN_OR_RETURN(const RefPtr<Work> shared, comm_->Start(counts));
  const absl::Status status = Carry("gradients", GradientsCall());
  shared->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  ENTRAIN_RETURN_IF_ERROR(status);
  return Annotate(shared->status(), "counts");
}

// Of the mean gradient, the same bits on all ranks.
absl::StatusOr<double> GradientChannel::Norm(double scale) {
  double square = 0;
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->at(), [&] { square = SumOfSquares(); }));
  std::vector<double> all(static_cast<size_t>(comm_->size()));
  WorkerThread::Doing(absl::StrCat("round ", rounds_ + 1, ": norm"));
  ENTRAIN_RETURN_IF_ERROR(Annotate(comm_->AllGather(&square, all.data(), 1, DType::kF64,
                                                    TimedCall(options_.timeout_ns, kDataTag, true)),
                                   "norm"));
  double sum = 0;
  for (const double one : all) {
    sum += one;
  }
  return std::sqrt(sum) * scale;
}

double GradientChannel::SumOfSquares() const {
  const Kernels& kernels = CurrentKernels();
  const int64_t count = slab_.layer(0).valid;
  const DType wire = options_.wire_dtype;
  auto* const as_f32 = reinterpret_cast<float*>(room_.data());
  double square = 0;
  for (int64_t first = 0; first < count; first += piece_) {
    const int64_t here = std::min(piece_, count - first);
    const std::byte* const grads = Own(wire) + first * SizeOf(wire);
    if (wire != DType::kF32) {
      kernels.cast(as_f32, DType::kF32, grads, wire, here);
    }
    square += kernels.sum_of_squares(
        wire == DType::kF32 ? reinterpret_cast<const float*>(grads) : as_f32, here);
  }
  return square;
}

// Piece by piece, gradients become parameters in the same place. Where one kind of element is wider
// than the other, the order is such that nothing is written over before it is read.
absl::Status GradientChannel::StepShard(const RoundStep& round) {
  const int64_t count = slab_.layer(0).valid;
  const int64_t pieces = (count + piece_ - 1) / piece_;
  const bool backward = SizeOf(options_.params_dtype) > SizeOf(options_.wire_dtype);
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = (backward ? pieces - 1 - i : i) * piece_;
    ENTRAIN_RETURN_IF_ERROR(StepPiece(round, first, std::min(piece_, count - first)));
  }
  return absl::OkStatus();
}

absl::Status GradientChannel::StepPiece(const RoundStep& round, int64_t first, int64_t count) {
  const Kernels& kernels = CurrentKernels();
  const DType type = options_.master_dtype(), wire = options_.wire_dtype,
              params = options_.params_dtype;
  std::byte* const grads = room_.data();
  std::byte* const estimate = grads + piece_ * SizeOf(type);
  kernels.cast(grads, type, Own(wire) + first * SizeOf(wire), wire, count);
  kernels.scale_any(type, grads, grads, count, round.scale);
  if (commits_) {
    ENTRAIN_RETURN_IF_ERROR(StepOnce(round.step, round.lr, first, count, grads, nullptr));
  }
  if (round.preview) {
    ENTRAIN_RETURN_IF_ERROR(
        StepOnce(commits_ ? round.step + 1 : round.step, round.lr, first, count, grads, estimate));
  }
  kernels.cast(Own(params) + first * SizeOf(params), params,
               round.preview ? estimate : master_.data() + first * SizeOf(type), type, count);
  return absl::OkStatus();
}

// `out` null: a commit.
absl::Status GradientChannel::StepOnce(int64_t step, double lr, int64_t first, int64_t count,
                                       const std::byte* grads, std::byte* out) {
  std::byte* const master = master_.data() + first * SizeOf(options_.master_dtype());
  if (options_.step != nullptr) {
    const std::string name = absl::StrCat(
        "the ACCO step of ", out == nullptr ? "commit " : "a preview of commit ", step);
    int32_t failed = 0;
    ENTRAIN_RETURN_IF_ERROR(WorkerThread::CallersFunction(name, [&] {
      failed =
          options_.step(options_.user, out == nullptr ? 0 : 1, step, lr, static_cast<size_t>(first),
                        static_cast<size_t>(count), grads, master, out);
    }));
    return failed == 0 ? absl::OkStatus()
                       : absl::AbortedError(absl::StrCat(name, " returned ", failed));
  }
  const int64_t begin = slab_.layer(0).first + first, end = begin + count;  // of all parameters
  auto group = std::upper_bound(
      groups_.begin(), groups_.end(), begin,
      [](int64_t at, const ParameterGroup& one) { return at < one.first + one.count; });
  for (; group != groups_.end() && group->first < end; ++group) {
    const int64_t from = std::max(begin, group->first);
    const int64_t here = std::min(end, group->first + group->count) - from;
    const int64_t skipped = from - begin;
    float* state[kMaxStateArrays];
    const auto arrays = static_cast<size_t>(group->optimizer->state_arrays());
    for (size_t i = 0; i < arrays; ++i) {
      state[i] = reinterpret_cast<float*>(state_[i].data()) + first + skipped;
    }
    group->optimizer->Step(
        {.count = here,
         .master = reinterpret_cast<float*>(master) + skipped,
         .grads = reinterpret_cast<const float*>(grads) + skipped,
         .state = absl::MakeConstSpan(state, arrays),
         .out = out == nullptr ? nullptr : reinterpret_cast<float*>(out) + skipped,
         .step = step,
         .lr = lr * group->lr_scale},
        out == nullptr ? Apply::kCommit : Apply::kPreview);
  }
  return absl::OkStatus();
}

}  // namespace entrain
