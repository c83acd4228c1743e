// Weighted sharpness-aware minimisation (WSAM, arXiv 2305.15817), on top of any optimizer. A step
// uses two gradients: g at w, and g₂ at w + e. The vector e has the length ρ and the direction of
// g. Let α = γ / (1 − γ).
//
//   e = ρ g / (‖g‖ + ε);  if adaptive: e = ρ w² g / (‖|w| g‖ + ε)
//   After e is computed, g and g₂ are clipped to max_norm, each by its own norm.
//   coupled:    a step of the optimizer with α g₂ + (1 − α) g, computed as g + α (g₂ − g)
//   decoupled:  a step of the optimizer with g, and w ← w − η α (g₂ − g)
//
// Everything except the norms is element-wise. The caller passes the norms as sums of squares,
// which it must add up over all slices and all ranks.
//
// A Wsam object has no state that influences a result. Thread safety: all functions are const and
// may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/device.h"
#include "lib/optim/optimizer.h"

namespace entrain {

struct WsamConfig {
  double rho = 0.05, gamma = 0.9, eps = 1e-12;
  double max_norm = 0;  // 0: off
  bool adaptive = false, decouple = true;
};

struct WsamStep {
  StepArgs args;                  // arguments for the base optimizer; the gradient is g
  const float* second = nullptr;  // g₂
  // Σ g² and Σ g₂² over all elements of the vector. Used only if max_norm is not 0.
  double sum = 0, second_sum = 0;
};

class Wsam {
 public:
  // Returns an error if a hyper-parameter is wrong. The error text contains its name and its value.
  static absl::StatusOr<std::unique_ptr<Wsam>> Make(const WsamConfig& config,
                                                    std::shared_ptr<const Optimizer> base);

  const WsamConfig& config() const { return config_; }
  const Optimizer& base() const { return *base_; }

  // Returns Σ g². If adaptive, returns Σ (w g)².
  double AscentSum(const float* params, const float* grads, int64_t count) const;
  // saved = w, params = w + e. `sum` is AscentSum over all elements of the vector.
  void Ascend(float* params, float* saved, const float* grads, int64_t count, double sum) const;
  // out = g + α (g₂ − g). `out` may be `grads` or `second`.
  void Combine(float* out, const float* grads, const float* second, int64_t count) const;
  // Makes a step from w. A preview writes only `out`, and gives the same bits as a commit. Can fail
  // only if a stream is bound (lib/device/device.h): the device may have no memory for the
  // temporary gradient.
  absl::Status Step(const WsamStep& step, Apply apply) const;

 private:
  Wsam(const WsamConfig& config, std::shared_ptr<const Optimizer> base)
      : config_(config), base_(std::move(base)), alpha_(config.gamma / (1 - config.gamma)) {}
  double ClipFactor(double sum) const;
  void StepParts(const WsamStep& step, Apply apply, float* made, int64_t most) const;

  const WsamConfig config_;
  const std::shared_ptr<const Optimizer> base_;
  const double alpha_;
  struct FreeOnDevice {
    Device* device;
    void operator()(float* memory) const { device->Free(memory); }
  };
  mutable absl::Mutex made_mutex_;
  // The temporary gradient on the device. Null before the first step on a device.
  mutable std::unique_ptr<float[], FreeOnDevice> made_ ABSL_GUARDED_BY(made_mutex_);
};

}  // namespace entrain
