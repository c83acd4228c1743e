// The optimizer that each replica runs by itself on its shard: the library's AdamW, SGD or AGD. The
// learning rate rises linearly and falls with a cosine. Gradients are clipped by the replica's
// gradient norm.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"

namespace trainer {

// Returns the learning rate of step 1 .. steps, or of a point in between.
double LearningRate(const InnerOptions& options, double step, double steps);

class InnerOptimizer {
 public:
  // `count` is the number of elements of the shard.
  InnerOptimizer(const InnerOptions& options, int64_t count);

  // Makes one step over the whole shard. `norm` is the replica's gradient norm. If `norm` is above
  // the limit, the step scales the gradients down. `step` counts from 1.
  void Step(int64_t step, double lr, double norm, std::vector<float>* params,
            std::vector<float>* grads);

  // Returns the optimizer's state: arrays as long as the shard.
  std::vector<std::vector<float>>& state() { return state_; }
  std::vector<void*> StatePointers();
  entrain_optim_t* handle() const { return optim_.get(); }

  // For agd: returns the share of this rank's elements that took an adaptive step, over the steps
  // since the last call. For other optimizers: returns a value below 0.
  double TakeAdaptiveShare();

 private:
  const double grad_clip_;
  OptimHandle optim_;
  std::vector<std::vector<float>> state_;
  entrain_optim_info_t taken_;  // state at the last TakeAdaptiveShare
};

}  // namespace trainer
