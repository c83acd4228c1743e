#include "lib/train/edit/outer_optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/array_hash.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"
#include "lib/train/edit/penalty.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Five arrays of this length fit the private cache of a core.
constexpr int64_t kPiece = 4096;
static_assert(kHashBlock % kPiece == 0);
constexpr int64_t kFloat = sizeof(float);

// Returns the optimizer of lib/optim for the outer step; null if the step needs none.
std::unique_ptr<Optimizer> MakeRule(const EditOptions& options) {
  OptimizerConfig config = {.beta1 = options.outer_beta1,
                            .beta2 = options.outer_beta2,
                            .eps = options.outer_eps,
                            .weight_decay = options.outer_weight_decay};
  switch (options.outer_optimizer) {
    case OuterKind::kAdamw:
      config.kind = OptimizerKind::kAdamw;
      break;
    case OuterKind::kLion:
      config.kind = OptimizerKind::kLion;
      break;
    default:
      return nullptr;
  }
  return *MakeOptimizer(config);  // CheckOptions has the same limits
}

}  // namespace

OuterScales ScaleOuterStep(const EditOptions& options, const OuterRates& rates,
                           absl::Span<const double> squares, double gap) {
  OuterScales scales;
  if (options.clip_pseudo_grad > 0) {
    scales.clip = ClipFactor(std::sqrt(squares[0]), options.clip_pseudo_grad);
  }
  scales.staleness = options.staleness_penalty ? gap : 1;
  scales.gradient = scales.clip / scales.staleness;
  const bool has_momentum = squares.size() > 1;
  const double mu = has_momentum ? rates.momentum : 0;
  const double dot = has_momentum ? (squares[0] + squares[1] - squares[2]) / 2 : 0;
  // Returns ||p Delta + q b||.
  const auto length = [&](double p, double q) {
    return std::sqrt(std::max(
        0.0, p * p * squares[0] + q * q * (has_momentum ? squares[1] : 0) + 2 * p * q * dot));
  };
  if (options.outer_momentum_clip > 0) {
    scales.momentum = ClipFactor(length(scales.gradient, mu), options.outer_momentum_clip);
    scales.gradient *= scales.momentum;
  }
  if (options.staleness_penalty) {
    const double s = scales.gradient, m = mu * scales.momentum;
    scales.length =
        rates.lr * (options.outer_nesterov ? length((1 + mu) * s, mu * m) : length(s, m));
  }
  return scales;
}

OuterOptimizer::OuterOptimizer(const Slab& slab, const EditOptions& options)
    : slab_(slab),
      options_(options),
      rule_(MakeRule(options)),
      steps_(static_cast<size_t>(slab.layers()), 0) {}

int OuterOptimizer::arrays() const {
  if (rule_ != nullptr) {
    return rule_->state_arrays();
  }
  return options_.outer_optimizer == OuterKind::kSgd && options_.outer_momentum != 0 ? 1 : 0;
}

absl::StatusOr<OuterRates> OuterOptimizer::NextRates(int layer) const {
  OuterRates rates{.lr = options_.outer_lr, .momentum = options_.outer_momentum};
  if (options_.outer_schedule == nullptr) {
    return rates;
  }
  const int64_t step = steps(layer) + 1;
  const std::string name = absl::StrCat("outer_schedule: layer ", layer, ", step ", step);
  int32_t failed = 0;
  ENTRAIN_RETURN_IF_ERROR(Worker::CallersFunction(name, [&] {
    failed = options_.outer_schedule(options_.outer_schedule_user, layer, step, &rates.lr,
                                     &rates.momentum);
  }));
  if (failed != 0) {
    return absl::AbortedError(absl::StrCat(name, ", returned ", failed));
  }
  if (!(rates.lr >= 0 && std::isfinite(rates.lr))) {
    return absl::AbortedError(
        absl::StrCat(name, ": lr is ", rates.lr, "; expected 0 or a positive number"));
  }
  const bool none = options_.outer_optimizer == OuterKind::kSgd && options_.outer_momentum == 0;
  if (!(rates.momentum >= 0 && rates.momentum < 1) || (none && rates.momentum != 0)) {
    return absl::AbortedError(
        absl::StrCat(name, ": momentum is ", rates.momentum,
                     none ? "; expected 0, as outer_momentum is 0 and there is no momentum"
                          : "; expected at least 0 and less than 1"));
  }
  return rates;
}

absl::Status OuterOptimizer::Step(int layer, float* mean, const OuterRates& rates,
                                  const OuterScales& scales, Anchors* anchors, float* live) {
  const int64_t step = ++steps_[static_cast<size_t>(layer)];
  const SlabLayer& l = slab_.layer(layer);
  if (l.valid > 0 && options_.outer_optimizer == OuterKind::kCallback) {
    float* const anchor = anchors->anchor(layer);
    if (const auto scale = static_cast<float>(scales.gradient); scale != 1) {
      SharedKernels().scale_any(DType::kF32, mean, mean, l.valid, scale);
    }
    const std::string name = absl::StrCat("the outer step of layer ", layer, ", step ", step);
    int32_t failed = 0;
    ENTRAIN_RETURN_IF_ERROR(Worker::CallersFunction(name, [&] {
      failed = options_.outer_step(options_.outer_user, layer, step, anchor, mean,
                                   static_cast<size_t>(l.valid));
    }));
    if (failed != 0) {
      return absl::AbortedError(absl::StrCat(name, ", returned ", failed));
    }
    CopyShared(live, anchor, l.valid * kFloat);
    anchors->Seal(layer);
    return absl::OkStatus();
  }
  if (l.valid > 0) {
    StepPieces(layer, mean, rates, scales, anchors, live);
  }
  return absl::OkStatus();
}

void OuterOptimizer::StepPieces(int layer, float* mean, const OuterRates& rates,
                                const OuterScales& scales, Anchors* anchors, float* live) const {
  const SlabLayer& l = slab_.layer(layer);
  std::vector<uint64_t> hashes(static_cast<size_t>((l.shard + kHashBlock - 1) / kHashBlock));
  ForPieces(l.shard, kHashBlock, [&](int64_t first, int64_t length) {
    const int64_t end = first + length, valid = std::min(end, l.valid);
    for (int64_t block = first; block < end; block += kHashBlock) {
      for (int64_t at = block; at < std::min(block + kHashBlock, valid); at += kPiece) {
        const Piece piece = PieceOf(layer, at, std::min(kPiece, valid - at), mean, anchors, live);
        rule_ == nullptr
            ? Sgd(piece, rates, scales)
            : StepByRule(piece, rates.lr, static_cast<float>(scales.gradient), steps(layer));
      }
      hashes[static_cast<size_t>(block / kHashBlock)] =
          HashBlock(anchors->anchor(layer) + block, std::min(kHashBlock, end - block));
    }
  });
  anchors->Seal(layer, CombineHashes(hashes));
}

OuterOptimizer::Piece OuterOptimizer::PieceOf(int layer, int64_t first, int64_t count, float* mean,
                                              Anchors* anchors, float* live) const {
  Piece piece = {.mean = mean + first,
                 .anchor = anchors->anchor(layer) + first,
                 .outer = {},
                 .live = live + first,
                 .count = count};
  for (int array = 0; array < anchors->outer_arrays(); ++array) {
    piece.outer[array] = anchors->outer(array, layer) + first;
  }
  return piece;
}

void OuterOptimizer::StepByRule(const Piece& piece, double lr, float scale, int64_t step) const {
  if (scale != 1) {
    SharedKernels().scale_any(DType::kF32, piece.mean, piece.mean, piece.count, scale);
  }
  rule_->Step({.count = piece.count,
               .master = piece.anchor,
               .grads = piece.mean,
               .state = absl::MakeConstSpan(piece.outer, static_cast<size_t>(arrays())),
               .step = step,
               .lr = lr},
              Apply::kCommit);
  CopyShared(piece.live, piece.anchor, piece.count * kFloat);
}

// Makes the sgd step of the header, or the plain step: sgd with eta = 1 and without momentum.
void OuterOptimizer::Sgd(const Piece& piece, const OuterRates& rates,
                         const OuterScales& scales) const {
  auto scale = static_cast<float>(scales.gradient);
  SgdArgs args{};
  args.lr = 1;  // eta
  if (options_.outer_optimizer == OuterKind::kSgd) {
    args.lr = rates.lr;
    args.momentum = rates.momentum * scales.momentum;  // mu' = kappa mu
    args.nesterov = options_.outer_nesterov;
    if (options_.outer_weight_decay >
        0) {  // g <- s Delta + lambda a, before the kernel; kappa is 1
      SharedKernels().scale_any(DType::kF32, piece.mean, piece.mean, piece.count, scale);
      SharedKernels().axpy(piece.mean, static_cast<float>(options_.outer_weight_decay),
                           piece.anchor, piece.count);
      scale = 1;
    }
  }
  if (piece.outer[0] != nullptr &&
      args.momentum == 0) {  // by outer_schedule: b <- g, for later steps
    SharedKernels().scale_any(DType::kF32, piece.outer[0], piece.mean, piece.count, scale);
  }
  // Before the first step b is zero, so that b ← mu b + g is b ← g in this step.
  SharedKernels().outer_step(args, scale, piece.anchor, piece.outer[0], piece.live, piece.mean,
                             piece.count);
}

}  // namespace entrain
