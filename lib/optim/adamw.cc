#include <cmath>

#include "lib/device/device.h"
#include "lib/kernels/kernels.h"
#include "lib/optim/rules.h"

namespace entrain {
namespace {

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

}  // namespace

std::unique_ptr<Optimizer> MakeAdamw(const OptimizerConfig& config) {
  return std::make_unique<Adamw>(config);
}

}  // namespace entrain
