// Optimizers over flat f32 arrays. Element-wise, so a step on a shard equals that part of a step on the whole.
//
// An Optimizer holds hyper-parameters, and counts; master and state arrays are the caller's.
// Thread safety: const, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain {

// kPreview computes new parameters into `out` and leaves master and state untouched; kCommit also stores them
// (`out` may be null or equal master). The same kernel makes both, so their parameters are bit-identical.
enum class Apply { kPreview, kCommit };

constexpr int kMaxStateArrays = 8;  // no rule has more

struct StepArgs {
  int64_t count = 0;        // elements
  float* master = nullptr;  // parameters
  const float* grads = nullptr;
  // state_arrays() arrays of `count` elements, zero before the first step.
  absl::Span<float* const> state;
  float* out = nullptr;  // kPreview: where the new parameters go, not master
  int64_t step = 1;      // 1 for the first step that is committed
  double lr = 0;
};

// Of rules that switch between an adaptive and a plain step: elements moved by commits, and how
// many of them adaptively.
struct BranchCounts {
  int64_t elements = 0, adaptive = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual int state_arrays() const = 0;  // how many arrays as long as the parameters
  virtual void Step(const StepArgs& args, Apply apply) const = 0;
  // Since creation; zeros for rules that have one branch.
  virtual BranchCounts branches() const { return {}; }
};

enum class OptimizerKind : int32_t { kSgd = 0, kAdamw = 1, kAgd = 2, kLion = 3 };
// agd: p ← (1 - lr wd) p, p ← (1 - wd) p, or g ← g + wd p.
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
  double delta = 1e-5;                          // the switch: below it a step is that of SGD
  double clip = 0;                              // largest m / max(√v, δ); 0: off
  bool amsgrad = false, win = false;
};
// Errors name the hyper-parameter and its value.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerConfig& config);

}  // namespace entrain
