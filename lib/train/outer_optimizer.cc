#include "lib/train/outer_optimizer.h"

#include <cstring>

namespace entrain {

OuterOptimizer::OuterOptimizer(const Slab& slab, const EditOptions& options)
    : slab_(slab), options_(options), steps_(static_cast<size_t>(slab.layers()), 0) {
  if (options.outer_optimizer == OuterKind::kAdamw) {
    // CheckOptions has the same limits, so there is one.
    adamw_ = *MakeOptimizer({.kind = OptimizerKind::kAdamw,
                             .beta1 = options.outer_beta1,
                             .beta2 = options.outer_beta2,
                             .eps = options.outer_eps,
                             .weight_decay = options.outer_weight_decay});
  }
}

void OuterOptimizer::Step(int layer, float* mean, const Scales& scales, Anchors* anchors,
                          float* live) {
  const int64_t step = ++steps_[static_cast<size_t>(layer)];
  const int64_t count = slab_.layer(layer).valid;
  const auto factor = static_cast<float>(scales.gradient);
  if (count == 0) {
    return;
  }
  if (adamw_ == nullptr && options_.outer_optimizer != OuterKind::kCallback) {
    Sgd(layer, mean, scales, anchors, live, count);
    return;
  }
  if (factor != 1) {
    kernels_.scale_any(DType::kF32, mean, mean, count, factor);
  }
  float* const anchor = anchors->anchor(layer);
  if (adamw_ != nullptr) {
    float* const moments[] = {anchors->outer(0, layer), anchors->outer(1, layer)};
    adamw_->Step({.count = count,
                  .master = anchor,
                  .grads = mean,
                  .state = moments,
                  .step = step,
                  .lr = options_.outer_lr},
                 Apply::kCommit);
  } else {
    options_.outer_step(options_.outer_user, layer, step, anchor, mean, static_cast<size_t>(count));
  }
  std::memcpy(live, anchor, static_cast<size_t>(count) * sizeof(float));
}

// Also the plain step: eta 1, no momentum.
void OuterOptimizer::Sgd(int layer, float* mean, const Scales& scales, Anchors* anchors,
                         float* live, int64_t count) const {
  auto beta = static_cast<float>(scales.gradient);
  float* const anchor = anchors->anchor(layer);
  SgdArgs args{};
  args.lr = 1;
  if (options_.outer_optimizer == OuterKind::kSgd) {
    args.lr = options_.outer_lr;
    args.momentum = options_.outer_momentum * scales.momentum;
    args.nesterov = options_.outer_nesterov;
    if (options_.outer_weight_decay > 0) {
      kernels_.scale_any(DType::kF32, mean, mean, count, beta);
      kernels_.axpy(mean, static_cast<float>(options_.outer_weight_decay), anchor, count);
      beta = 1;
    }
  }
  // b is zero before the first step, which makes b ← mu b + g the first step's b ← g.
  float* const momentum = anchors->outer_arrays() > 0 ? anchors->outer(0, layer) : nullptr;
  kernels_.outer_step(args, beta, anchor, momentum, live, mean, count);
}

}  // namespace entrain
