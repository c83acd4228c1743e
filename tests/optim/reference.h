// The update rules, written exactly as their definitions, one element at a time, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/optim/optimizer.h"
#include "lib/optim/wsam.h"

namespace entrain {

// One parameter with the state of all rules.
struct ReferenceElement {
  double x = 0;
  double b = 0;           // sgd
  double m = 0, v = 0;    // adamw; agd: v is b
  double largest = 0;     // agd with amsgrad
  double z = 0;           // agd with win
  bool adaptive = false;  // agd: the branch of the last step
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

inline void ReferenceLionStep(const OptimizerConfig& config, double lr, double g,
                              ReferenceElement& e) {
  const double mixed = config.beta1 * e.m + (1 - config.beta1) * g;
  e.x -= lr * ((mixed > 0) - (mixed < 0) + config.weight_decay * e.x);
  e.m = config.beta2 * e.m + (1 - config.beta2) * g;
}

inline void ReferenceAgdStep(const OptimizerConfig& config, double lr, int64_t step, double g,
                             ReferenceElement& e) {
  const auto t = static_cast<double>(step);
  if (config.decay == WeightDecay::kCoupled) {
    g += config.weight_decay * e.x;
  } else if (!config.win) {
    e.x *= 1 - config.weight_decay * (config.decay == WeightDecay::kFixed ? 1 : lr);
  }
  const double before = e.m;
  e.m = config.beta1 * e.m + (1 - config.beta1) * g;
  const double c1 = 1 - std::pow(config.beta1, t), c1_before = 1 - std::pow(config.beta1, t - 1);
  const double c2 = 1 - std::pow(config.beta2, t);
  const double s = step == 1 ? e.m / c1 : e.m / c1 - before / c1_before;
  e.v = config.beta2 * e.v + (1 - config.beta2) * s * s;
  e.largest = std::max(e.largest, e.v);
  const double root = std::sqrt(config.amsgrad ? e.largest : e.v);
  const double least = config.delta * std::sqrt(c2);
  e.adaptive = root >= least;
  double u = e.m / std::max(root, least);
  if (config.clip > 0) {
    u = std::clamp(u, -config.clip, config.clip);
  }
  const double a = lr * std::sqrt(c2) / c1;
  if (!config.win) {
    e.x -= a * u;
    return;
  }
  e.z = ((step == 1 ? e.x : e.z) - a * u) / (1 + config.weight_decay * a);
  const double tau = 1 / (3 + 2 * a * config.weight_decay);
  e.x = tau * e.x - 2 * tau * a * u + 2 * tau * e.z;
}

inline void ReferenceStep(const OptimizerConfig& config, double lr, int64_t step, double grad,
                          ReferenceElement& e) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return ReferenceSgdStep(config, lr, step, grad, e);
    case OptimizerKind::kAdamw:
      return ReferenceAdamwStep(config, lr, step, grad, e);
    case OptimizerKind::kAgd:
      return ReferenceAgdStep(config, lr, step, grad, e);
    case OptimizerKind::kLion:
      return ReferenceLionStep(config, lr, grad, e);
  }
}

// WSAM: returns e, the displacement to the point of the second gradient, from a gradient at x.
inline std::vector<double> ReferencePerturbation(const WsamConfig& config,
                                                 const std::vector<double>& x,
                                                 const std::vector<double>& g) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += std::pow(config.adaptive ? x[i] * g[i] : g[i], 2);
  }
  std::vector<double> e(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    e[i] = config.rho * g[i] / (std::sqrt(sum) + config.eps) * (config.adaptive ? x[i] * x[i] : 1);
  }
  return e;
}

inline std::vector<double> ReferenceClip(const WsamConfig& config, std::vector<double> g) {
  double sum = 0;
  for (const double value : g) {
    sum += value * value;
  }
  for (double& value : g) {
    value *= config.max_norm > 0 ? std::min(1.0, config.max_norm / (std::sqrt(sum) + 1e-6)) : 1;
  }
  return g;
}

// Makes the step from x with both gradients.
inline void ReferenceWsamStep(const WsamConfig& config, const OptimizerConfig& base, double lr,
                              int64_t step, std::vector<double> g, std::vector<double> g2,
                              std::vector<ReferenceElement>& elements) {
  g = ReferenceClip(config, std::move(g));
  g2 = ReferenceClip(config, std::move(g2));
  const double alpha = config.gamma / (1 - config.gamma);
  for (size_t i = 0; i < elements.size(); ++i) {
    ReferenceStep(base, lr, step, config.decouple ? g[i] : alpha * g2[i] + (1 - alpha) * g[i],
                  elements[i]);
    elements[i].x -= config.decouple ? lr * alpha * (g2[i] - g[i]) : 0;
  }
}

}  // namespace entrain
