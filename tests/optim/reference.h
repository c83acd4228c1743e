// The update rules as their definitions read, one element at a time, in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "lib/optim/optimizer.h"

namespace entrain {

// One parameter with all the state a rule may need.
struct ReferenceElement {
  double x = 0;
  double b = 0;         // sgd
  double m = 0, v = 0;  // adamw
};

inline void ReferenceSgdStep(const OptimizerConfig& config, double lr, int64_t step, double grad,
                             ReferenceElement& e) {
  const double g = grad + config.weight_decay * e.x;
  e.b = step == 1 ? g : config.momentum * e.b + g;
  e.x -= lr * (config.nesterov ? g + config.momentum * e.b : e.b);
}

inline void ReferenceAdamwStep(const OptimizerConfig& config, double lr, int64_t step, double g,
                               ReferenceElement& e) {
  const auto t = static_cast<double>(step);
  e.x *= 1 - lr * config.weight_decay;
  e.m = config.beta1 * e.m + (1 - config.beta1) * g;
  e.v = config.beta2 * e.v + (1 - config.beta2) * g * g;
  e.x -= lr / (1 - std::pow(config.beta1, t)) * e.m /
         (std::sqrt(e.v) / std::sqrt(1 - std::pow(config.beta2, t)) + config.eps);
}

inline void ReferenceStep(const OptimizerConfig& config, double lr, int64_t step, double grad,
                          ReferenceElement& e) {
  config.kind == OptimizerKind::kSgd ? ReferenceSgdStep(config, lr, step, grad, e)
                                     : ReferenceAdamwStep(config, lr, step, grad, e);
}

}  // namespace entrain
