#include "lib/device/device.h"
#include "lib/kernels/kernels.h"
#include "lib/optim/rules.h"

namespace entrain {
namespace {

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

}  // namespace

std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

}  // namespace entrain
