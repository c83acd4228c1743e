#include "lib/train/acco/shard_step.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr int64_t kPiece = 4096;  // elements of a piece, which must stay in the cache

}  // namespace

absl::Status ShardStep::Estimate(const GradientSum& a, const StepTime& t) {
  return ForEachPiece(a, [&](const Piece& piece) { return Preview(piece, t); });
}

absl::Status ShardStep::Commit(const GradientSum& a_and_b, const StepTime& t) {
  return ForEachPiece(a_and_b, [&](const Piece& piece) { return Keep(piece, t); });
}

absl::Status ShardStep::Predict(const GradientSum& g, const StepTime& t) {
  return ForEachPiece(g, [&](const Piece& piece) -> Made {
    ENTRAIN_RETURN_IF_ERROR(Keep(piece, t).status());
    return Preview(piece, {t.commit + 1, t.lr});
  });
}

// The gradients and the parameters lie in the same buffer, `com`. If their elements differ in size,
// the order of the pieces ensures that no gradient is overwritten before it is read.
absl::Status ShardStep::ForEachPiece(const GradientSum& sum,
                                     absl::FunctionRef<Made(const Piece&)> step) {
  const Kernels& kernels = SharedKernels();
  const DType type = options_.master_dtype(), wire = options_.wire_dtype,
              params = options_.params_dtype;
  const double scale = 1 / static_cast<double>(sum.microbatches) * sum.clip;
  const int64_t pieces = (layer_.valid + piece_ - 1) / piece_;
  const bool backward = SizeOf(params) > SizeOf(wire);
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = (backward ? pieces - 1 - i : i) * piece_;
    const int64_t count = std::min(piece_, layer_.valid - first);
    std::byte* const mean = room_.data();
    kernels.cast(mean, type, Own(sum.com, wire) + first * SizeOf(wire), wire, count);
    kernels.scale_any(type, mean, mean, count, scale);
    ENTRAIN_ASSIGN_OR_RETURN(const std::byte* const made, step({first, count, mean}));
    kernels.cast(Own(sum.com, params) + first * SizeOf(params), params, made, type, count);
  }
  return absl::OkStatus();
}

ShardStep::Made ShardStep::Preview(const Piece& piece, const StepTime& t) {
  ENTRAIN_RETURN_IF_ERROR(Opt(Apply::kPreview, piece, t));
  return Previewed();
}

ShardStep::Made ShardStep::Keep(const Piece& piece, const StepTime& t) {
  ENTRAIN_RETURN_IF_ERROR(Opt(Apply::kCommit, piece, t));
  return Theta(piece.first);
}

absl::Status ShardStep::Opt(Apply apply, const Piece& piece, const StepTime& t) {
  if (options_.step != nullptr) {
    return CallersStep(apply, piece, t);
  }
  GroupsStep(apply, piece, t);
  return absl::OkStatus();
}

absl::Status ShardStep::CallersStep(Apply apply, const Piece& piece, const StepTime& t) {
  const bool preview = apply == Apply::kPreview;
  const std::string name =
      absl::StrCat("the ACCO step of ", preview ? "a preview of commit " : "commit ", t.commit);
  int32_t failed = 0;
  ENTRAIN_RETURN_IF_ERROR(Worker::CallersFunction(name, [&] {
    failed = options_.step(options_.user, preview ? 1 : 0, t.commit, t.lr,
                           static_cast<size_t>(piece.first), static_cast<size_t>(piece.count),
                           piece.mean, Theta(piece.first), preview ? Previewed() : nullptr);
  }));
  return failed == 0 ? absl::OkStatus()
                     : absl::AbortedError(absl::StrCat(name, " returned ", failed));
}

void ShardStep::GroupsStep(Apply apply, const Piece& piece, const StepTime& t) {
  const int64_t begin = layer_.first + piece.first, end = begin + piece.count;  // of all elements
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
      state[i] = reinterpret_cast<float*>(state_[i].data()) + piece.first + skipped;
    }
    float* const out = reinterpret_cast<float*>(Previewed()) + skipped;
    group->optimizer->Step({.count = here,
                            .master = reinterpret_cast<float*>(Theta(piece.first)) + skipped,
                            .grads = reinterpret_cast<const float*>(piece.mean) + skipped,
                            .state = absl::MakeConstSpan(state, arrays),
                            .out = apply == Apply::kPreview ? out : nullptr,
                            .step = t.commit,
                            .lr = t.lr * group->lr_scale},
                           apply);
  }
}

double ShardStep::SumOfSquares(const std::byte* com) const {
  const Kernels& kernels = SharedKernels();
  const DType wire = options_.wire_dtype;
  auto* const as_f32 = reinterpret_cast<float*>(room_.data());
  double square = 0;
  for (int64_t first = 0; first < layer_.valid; first += piece_) {
    const int64_t here = std::min(piece_, layer_.valid - first);
    const std::byte* const grads = com + (at_ + first) * SizeOf(wire);
    if (wire != DType::kF32) {
      kernels.cast(as_f32, DType::kF32, grads, wire, here);
    }
    square += kernels.sum_of_squares(
        wire == DType::kF32 ? reinterpret_cast<const float*>(grads) : as_f32, here);
  }
  return square;
}

absl::Status ShardStep::Allocate() {
  const int64_t element = SizeOf(options_.master_dtype());
  ENTRAIN_ASSIGN_OR_RETURN(theta_, OwnedBuffer::Allocate(layer_.shard * element));
  piece_ = std::min(layer_.shard, kPiece);
  ENTRAIN_ASSIGN_OR_RETURN(room_, OwnedBuffer::Allocate(2 * piece_ * element));
  int arrays = 0;
  for (const ParameterGroup& group : groups_) {
    arrays = std::max(arrays, group.optimizer->state_arrays());
  }
  for (int i = 0; i < arrays; ++i) {
    ENTRAIN_ASSIGN_OR_RETURN(state_.emplace_back(),
                             OwnedBuffer::Allocate(layer_.shard * SizeOf(DType::kF32)));
  }
  return absl::OkStatus();
}

void ShardStep::Start(const std::byte* params) {
  for (const OwnedBuffer& array : state_) {
    ZeroShared(array.data(), array.size());
  }
  const DType type = options_.params_dtype;
  SharedKernels().cast(theta_.data(), options_.master_dtype(), params + layer_.first * SizeOf(type),
                       type, layer_.valid);
}

void ShardStep::WriteTheta(std::byte* com) const {
  const DType type = options_.params_dtype;
  SharedKernels().cast(Own(com, type), type, theta_.data(), options_.master_dtype(), layer_.valid);
}

std::byte* ShardStep::Theta(int64_t first) const {
  return theta_.data() + first * SizeOf(options_.master_dtype());
}

std::byte* ShardStep::Previewed() const {
  return room_.data() + piece_ * SizeOf(options_.master_dtype());
}

std::vector<float*> ShardStep::Arrays() const {
  std::vector<float*> arrays = {reinterpret_cast<float*>(theta_.data())};
  for (const OwnedBuffer& array : state_) {
    arrays.push_back(reinterpret_cast<float*>(array.data()));
  }
  return arrays;
}

int64_t ShardStep::bytes() const {
  int64_t bytes = theta_.size() + room_.size();
  for (const OwnedBuffer& array : state_) {
    bytes += array.size();
  }
  return bytes;
}

void ShardStep::VisitState(StateVisitor& visitor) {
  if (options_.master_dtype() == DType::kF64) {
    visitor.Array("master", Holder::kRank, DType::kF64, theta_.data(), layer_.valid);
  } else {
    visitor.Layer("master", 0, reinterpret_cast<float*>(theta_.data()));
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    visitor.Layer(absl::StrCat("optim/", i), 0, reinterpret_cast<float*>(state_[i].data()));
  }
}

}  // namespace entrain
