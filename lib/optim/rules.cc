#include "lib/optim/rules.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "lib/device/device.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerConfig& config) : config_(config) {}

  int state_arrays() const override { return config_.momentum != 0 ? 1 : 0; }

  void Step(const StepArgs& args, Apply apply) const override {
    if (args.count == 0) {
      return;
    }
    const SgdArgs rule = {.lr = args.lr,
                          .momentum = config_.momentum,
                          .weight_decay = config_.weight_decay,
                          .nesterov = config_.nesterov,
                          .first_step = args.step == 1};
    float* const out = apply == Apply::kCommit ? args.master : args.out;
    float* const momentum = state_arrays() == 0 ? nullptr : args.state[0];
    CurrentKernels().sgd(rule, out, args.master, args.grads, momentum, args.count);
  }

 private:
  const OptimizerConfig config_;
};

class Adamw final : public Optimizer {
 public:
  explicit Adamw(const OptimizerConfig& config) : config_(config) {}

  int state_arrays() const override { return 2; }

  void Step(const StepArgs& args, Apply apply) const override {
    if (args.count == 0) {
      return;
    }
    const auto t = static_cast<double>(args.step);
    const AdamwArgs rule = {.lr = args.lr,
                            .beta1 = config_.beta1,
                            .beta2 = config_.beta2,
                            .eps = config_.eps,
                            .weight_decay = config_.weight_decay,
                            .correction1 = 1 - std::pow(config_.beta1, t),
                            .correction2 = 1 - std::pow(config_.beta2, t)};
    float* const out = apply == Apply::kCommit ? args.master : args.out;
    CurrentKernels().adamw(rule, out, args.master, args.grads, args.state[0], args.state[1],
                           args.count);
  }

 private:
  const OptimizerConfig config_;
};

class Lion final : public Optimizer {
 public:
  explicit Lion(const OptimizerConfig& config) : config_(config) {}

  int state_arrays() const override { return 1; }

  void Step(const StepArgs& args, Apply apply) const override {
    if (args.count == 0) {
      return;
    }
    const LionArgs rule = {.lr = args.lr,
                           .beta1 = config_.beta1,
                           .beta2 = config_.beta2,
                           .weight_decay = config_.weight_decay};
    float* const out = apply == Apply::kCommit ? args.master : args.out;
    CurrentKernels().lion(rule, out, args.master, args.grads, args.state[0], args.count);
  }

 private:
  const OptimizerConfig config_;
};

// The least value of δ √c₂. With a smaller one, s² could underflow to 0 in f32, and u would be 0 /
// 0.
constexpr double kLeastDivisor = 1e-19;

class Agd final : public Optimizer {
 public:
  explicit Agd(const OptimizerConfig& config) : config_(config) {}

  int state_arrays() const override { return 2 + config_.amsgrad + config_.win; }

  void Step(const StepArgs& args, Apply apply) const override {
    if (args.count == 0) {
      return;
    }
    const AgdArrays arrays = {.out = apply == Apply::kCommit ? args.master : args.out,
                              .p = args.master,
                              .g = args.grads,
                              .m = args.state[0],
                              .b = args.state[1],
                              .largest = config_.amsgrad ? args.state[2] : nullptr,
                              .z = config_.win ? args.state.back() : nullptr};
    const int64_t adaptive = CurrentKernels().agd(Rule(args.step, args.lr), arrays, args.count);
    if (apply == Apply::kCommit) {
      elements_.fetch_add(args.count, std::memory_order_relaxed);
      adaptive_.fetch_add(adaptive, std::memory_order_relaxed);
    }
  }

  BranchCounts branches() const override {
    return {elements_.load(std::memory_order_relaxed), adaptive_.load(std::memory_order_relaxed)};
  }

 private:
  // Returns the parameters of step `step`, in double. Their names are those of lib/optim/rules.h.
  AgdArgs Rule(int64_t step, double lr) const {
    const auto t = static_cast<double>(step);
    const double c1 = 1 - std::pow(config_.beta1, t);
    const double c1_before = 1 - std::pow(config_.beta1, t - 1);
    const double root_c2 = std::sqrt(1 - std::pow(config_.beta2, t));
    return {.p_factor = DecayOfP(lr),
            .coupled_lambda = config_.decay == WeightDecay::kCoupled ? config_.weight_decay : 0,
            .beta1 = config_.beta1,
            .beta2 = config_.beta2,
            .rest1_over_c1 = (1 - config_.beta1) / c1,
            .inverse_c1_before = step == 1 ? 0 : 1 / c1_before,
            .delta_root_c2 = std::max(config_.delta * root_c2, kLeastDivisor),
            .clip = config_.clip > 0 ? config_.clip : std::numeric_limits<double>::infinity(),
            .a = lr * root_c2 / c1,
            .lambda = config_.weight_decay,
            .first_step = step == 1};
  }
  // Returns the factor of p in equation (1).
  double DecayOfP(double lr) const {
    if (config_.win || config_.decay == WeightDecay::kCoupled) {
      return 1;
    }
    return 1 - config_.weight_decay * (config_.decay == WeightDecay::kFixed ? 1 : lr);
  }

  const OptimizerConfig config_;
  // Counters for diagnostics. Atomic, because several threads may step slices at the same time.
  // Relaxed, because no other data depend on them.
  mutable std::atomic<int64_t> elements_{0}, adaptive_{0};
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

std::unique_ptr<Optimizer> MakeAdamw(const OptimizerConfig& config) {
  return std::make_unique<Adamw>(config);
}

std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

std::unique_ptr<Optimizer> MakeAgd(const OptimizerConfig& config) {
  return std::make_unique<Agd>(config);
}

}  // namespace entrain
