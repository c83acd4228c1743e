// Weighted sharpness-aware minimisation (WSAM, arXiv 2305.15817) around any optimizer. A step takes
// two gradients: g at w, and g₂ at w + e, a way of length ρ up the first. With α = γ / (1 − γ):
//
//   e = ρ g / (‖g‖ + ε), adaptive: ρ w² g / (‖|w| g‖ + ε)
//   g and g₂ are clipped to max_norm, each by its own norm, after e was formed
//   coupled:    a step of the optimizer with α g₂ + (1 − α) g, computed as g + α (g₂ − g)
//   decoupled:  a step of the optimizer with g, and w ← w − η α (g₂ − g)
//
// Element-wise but for the norms, which come as sums of squares: whoever calls adds them up over
// slices, and over ranks. Holds no state. Thread safety: const, any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/arrays.h"
#include "lib/optim/optimizer.h"

namespace entrain {

struct WsamConfig {
  double rho = 0.05, gamma = 0.9, eps = 1e-12;
  double max_norm = 0;  // 0: off
  bool adaptive = false, decouple = true;
};

struct WsamStep {
  StepArgs args;                  // the base optimizer's, with g
  const float* second = nullptr;  // g₂
  // Σ g² and Σ g₂² over all elements of the vector; of no effect without max_norm.
  double sum = 0, second_sum = 0;
};

class Wsam {
 public:
  // Errors name the hyper-parameter and its value.
  static absl::StatusOr<std::unique_ptr<Wsam>> Make(const WsamConfig& config,
                                                    std::shared_ptr<const Optimizer> base);

  const WsamConfig& config() const { return config_; }
  const Optimizer& base() const { return *base_; }

  // Σ g², adaptive: Σ (w g)².
  double AscentSum(const float* params, const float* grads, int64_t count) const;
  // saved = w, params = w + e, with the AscentSum of the whole vector.
  void Ascend(float* params, float* saved, const float* grads, int64_t count, double sum) const;
  // out = g + α (g₂ − g); out may be either.
  void Combine(float* out, const float* grads, const float* second, int64_t count) const;
  // From w. As an Optimizer's: a preview writes out and nothing else, bit-identical.
  // An error only where a stream is bound (lib/device/device.h): there is no memory for a gradient on the way.
  absl::Status Step(const WsamStep& step, Apply apply) const;

 private:
  Wsam(const WsamConfig& config, std::shared_ptr<const Optimizer> base)
      : config_(config), base_(std::move(base)), alpha_(config.gamma / (1 - config.gamma)) {}
  double ClipFactor(double sum) const;
  void StepParts(const WsamStep& step, Apply apply, float* made, int64_t most) const;

  const WsamConfig config_;
  const std::shared_ptr<const Optimizer> base_;
  const double alpha_;
  mutable absl::Mutex made_mutex_;
  mutable PlacedArray made_ ABSL_GUARDED_BY(made_mutex_);
};

}  // namespace entrain
