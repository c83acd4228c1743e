// Weighted sharpness-aware minimisation (WSAM, arXiv 2305.15817) around any optimizer. A step takes
// two gradients: g at w, and g₂ at w + e, where e has length ρ in the direction of g. With
// α = γ / (1 − γ):
//
//   e = ρ g / (‖g‖ + ε); if adaptive, e = ρ w² g / (‖|w| g‖ + ε)
//   g and g₂ are clipped to max_norm, each by its own norm, after e was formed
//   coupled:    a step of the optimizer with α g₂ + (1 − α) g, computed as g + α (g₂ − g)
//   decoupled:  a step of the optimizer with g, and w ← w − η α (g₂ − g)
//
// Everything but the norms is element-wise. The norms are passed as sums of squares, which the
// caller adds up over slices and over ranks. The object holds no state. Thread safety: all
// functions are const, and may be called from any thread.
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
  StepArgs args;                  // the base optimizer's arguments, with g as the gradient
  const float* second = nullptr;  // g₂
  // Σ g² and Σ g₂² over all elements of the vector. Used only with max_norm.
  double sum = 0, second_sum = 0;
};

class Wsam {
 public:
  // Returns an error that names the hyper-parameter and its value if one is wrong.
  static absl::StatusOr<std::unique_ptr<Wsam>> Make(const WsamConfig& config,
                                                    std::shared_ptr<const Optimizer> base);

  const WsamConfig& config() const { return config_; }
  const Optimizer& base() const { return *base_; }

  // Returns Σ g²; if adaptive, Σ (w g)².
  double AscentSum(const float* params, const float* grads, int64_t count) const;
  // Computes saved = w and params = w + e. `sum` is AscentSum over the whole vector.
  void Ascend(float* params, float* saved, const float* grads, int64_t count, double sum) const;
  // Computes out = g + α (g₂ − g). `out` may be `grads` or `second`.
  void Combine(float* out, const float* grads, const float* second, int64_t count) const;
  // Takes a step from w. As with an Optimizer, a preview writes only `out`, and is bit-identical to
  // the commit. Returns an error only if a stream is bound (lib/device/device.h) and the device has
  // no memory for the temporary gradient.
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
