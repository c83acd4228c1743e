// Optimizers for flat f32 arrays. All rules are element-wise. So a step on a shard gives the same
// values as a step on the whole array.
//
// An Optimizer holds hyper-parameters and counters. The caller owns the parameters and the state
// arrays. Thread safety: all functions are const and may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

// kPreview writes the new parameters to `out`, and changes neither `master` nor `state`. kCommit
// stores the new parameters in `master`, updates `state`, and ignores `out`. Both run the same
// kernel, so the new parameters are bit-identical.
enum class Apply { kPreview, kCommit };

constexpr int kMaxStateArrays = 8;  // enough for every rule

struct StepArgs {
  int64_t count = 0;        // elements
  float* master = nullptr;  // the parameters
  const float* grads = nullptr;
  // state_arrays() arrays of `count` elements. All elements must be zero before the first step.
  absl::Span<float* const> state;
  float* out = nullptr;  // kPreview: receives the new parameters; must not be `master`
  int64_t step = 1;      // number of the step; 1 for the first
  double lr = 0;
};

// Counts for rules that choose between an adaptive and a plain step for each element. elements: all
// elements of committed steps. adaptive: those with an adaptive step.
struct BranchCounts {
  int64_t elements = 0, adaptive = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Returns the number of arrays in StepArgs::state.
  virtual int state_arrays() const = 0;
  virtual void Step(const StepArgs& args, Apply apply) const = 0;
  // Returns the counts since creation. Zero if the rule makes no such choice.
  virtual BranchCounts branches() const { return {}; }
};

// Not the values of ENTRAIN_OPTIM_*, in which 3 is WSAM.
enum class OptimizerKind : int32_t { kSgd = 0, kAdamw = 1, kAgd = 2, kLion = 3 };
// Only for agd. kDecoupled: p ← (1 - lr wd) p. kFixed: p ← (1 - wd) p. kCoupled: g ← g + wd p.
enum class WeightDecay : int32_t { kDecoupled = 0, kFixed = 1, kCoupled = 2 };
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999;  // adamw, agd, lion
  double eps = 1e-8;                  // adamw
  // sgd: added to the gradient; adamw, lion: decoupled; agd: see `decay`
  double weight_decay = 0;
  // All members below are for agd only.
  WeightDecay decay = WeightDecay::kDecoupled;
  // an element makes a plain step if √(v / c₂) is below this (rules.h)
  double delta = 1e-5;
  double clip = 0;  // limit of |u| (rules.h); 0: none
  bool amsgrad = false, win = false;
};
// Returns an error if a hyper-parameter is wrong. The error text contains its name and its value.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerConfig& config);

// Returns beta = min(1, phi / (norm + 1e-6)). A vector whose norm is `norm` has at most norm phi
// after multiplication by beta.
double ClipFactor(double norm, double phi);

}  // namespace entrain
