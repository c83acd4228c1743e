#include "lib/device/device.h"
#include "lib/kernels/kernels.h"
#include "lib/optim/rules.h"

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

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

}  // namespace entrain
