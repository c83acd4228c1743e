// Optimizers over flat f32 arrays. All rules are element-wise, so a step on a shard gives its
// elements the same values as a step on the whole array.
//
// An Optimizer holds hyper-parameters and counters. The caller owns the master and state arrays.
// Thread safety: all functions are const, and may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

// kPreview computes the new parameters into `out` and does not change master and state. kCommit
// also stores them (`out` may be null or equal to master). kPreview and kCommit run the same
// kernel, so their parameters are bit-identical.
enum class Apply { kPreview, kCommit };

constexpr int kMaxStateArrays = 8;  // no rule has more

struct StepArgs {
  int64_t count = 0;        // elements
  float* master = nullptr;  // parameters
  const float* grads = nullptr;
  // The state: state_arrays() arrays of `count` elements, zero before the first step.
  absl::Span<float* const> state;
  float* out = nullptr;  // kPreview: receives the new parameters; must not be master
  int64_t step = 1;      // 1 for the first committed step
  double lr = 0;
};

// For rules that switch between an adaptive and a plain step: the number of elements that commits
// have moved, and how many of them by an adaptive step.
struct BranchCounts {
  int64_t elements = 0, adaptive = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual int state_arrays() const = 0;  // arrays, each as long as the parameters
  virtual void Step(const StepArgs& args, Apply apply) const = 0;
  // Returns the counts since creation. They are zero for rules without a switch.
  virtual BranchCounts branches() const { return {}; }
};

enum class OptimizerKind : int32_t { kSgd = 0, kAdamw = 1, kAgd = 2, kLion = 3 };
// agd: kDecoupled p ← (1 - lr wd) p, kFixed p ← (1 - wd) p, kCoupled g ← g + wd p.
enum class WeightDecay : int32_t { kDecoupled = 0, kFixed = 1, kCoupled = 2 };
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999;  // adamw, agd, lion
  double eps = 1e-8;                  // adamw
  double weight_decay =
      0;  // sgd: added to the gradient; adamw, lion: decoupled; agd: as `decay` says
  WeightDecay decay = WeightDecay::kDecoupled;  // agd, as all below
  double delta = 1e-5;                          // threshold of the switch: below it a step is that
                                                // of SGD
  double clip = 0;                              // largest m / max(√v, δ); 0: off
  bool amsgrad = false, win = false;
};
// Returns an error that names the hyper-parameter and its value if one is wrong.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerConfig& config);

}  // namespace entrain
