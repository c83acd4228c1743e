#include "examples/trainer/inner_optimizer.h"

#include <algorithm>
#include <cmath>

#include "examples/trainer/kernels.h"

namespace trainer {

double LearningRate(const InnerOptions& options, double step, double steps) {
  const double least = options.min_lr >= 0.0 ? options.min_lr : options.lr / 10;
  const double rise =
      std::min(options.lr_warmup_steps >= 0 ? static_cast<double>(options.lr_warmup_steps)
                                            : std::floor(steps / 20),
               steps);
  if (step <= rise) {
    return options.lr * step / rise;
  }
  const double done = (step - rise) / (steps - rise);
  return least + (options.lr - least) * 0.5 * (1.0 + std::cos(3.141592653589793 * done));
}

InnerOptimizer::InnerOptimizer(const InnerOptions& options, int64_t count)
    : grad_clip_(options.grad_clip) {
  entrain_optim_config_t config;
  entrain_optim_config_init(&config);
  config.weight_decay = options.weight_decay;
  if (options.optimizer == "adamw") {
    config.kind = ENTRAIN_OPTIM_ADAMW;
    config.beta1 = options.beta1;
    config.beta2 = options.beta2;
    config.eps = options.eps;
  } else if (options.optimizer == "agd") {
    config.kind = ENTRAIN_OPTIM_AGD;
    config.beta1 = options.beta1;
    config.beta2 = options.beta2;
    config.delta = options.agd_delta;
    config.clip = options.agd_clip;
    config.decay = options.agd_decay == "fixed"     ? ENTRAIN_DECAY_FIXED
                   : options.agd_decay == "coupled" ? ENTRAIN_DECAY_COUPLED
                                                    : ENTRAIN_DECAY_DECOUPLED;
    config.amsgrad = options.agd_amsgrad ? 1 : 0;
    config.win = options.agd_win ? 1 : 0;
  } else {
    config.kind = ENTRAIN_OPTIM_SGD;
    config.momentum = options.momentum;
    config.nesterov = options.nesterov ? 1 : 0;
  }
  entrain_optim_info_init(&taken_);
  entrain_optim_t* optim = nullptr;
  Check(entrain_optim_create(&config, &optim));
  optim_.reset(optim);
  int32_t arrays = 0;
  Check(entrain_optim_state_arrays(optim, &arrays));
  for (int32_t array = 0; array < arrays; ++array) {
    state_.emplace_back(static_cast<size_t>(count));
  }
}

void InnerOptimizer::Step(int64_t step, double lr, double norm, std::vector<float>* params,
                          std::vector<float>* grads) {
  if (grad_clip_ > 0.0 && norm > grad_clip_) {
    Scale(grads->data(), static_cast<float>(grad_clip_ / norm),
          static_cast<int64_t>(grads->size()));
  }
  Check(entrain_optim_step(optim_.get(), params->data(), grads->data(), StatePointers().data(),
                           params->size(), ENTRAIN_F32, step, lr));
}

std::vector<void*> InnerOptimizer::StatePointers() {
  std::vector<void*> pointers;
  for (auto& array : state_) {
    pointers.push_back(array.data());
  }
  return pointers;
}

double InnerOptimizer::TakeAdaptiveShare() {
  const entrain_optim_info_t before = taken_;
  Check(entrain_optim_info(optim_.get(), &taken_));
  const uint64_t elements = taken_.elements - before.elements;
  return elements == 0 ? -1.0
                       : static_cast<double>(taken_.adaptive - before.adaptive) /
                             static_cast<double>(elements);
}

}  // namespace trainer
