// The optimizer that each replica runs by itself, on its shard: AdamW, SGD or AGD of the library, a
// learning rate that rises linearly and falls with a cosine, and clipping by the gradient norm of
// the replica.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"

namespace trainer {

// The learning rate of step 1 .. steps, or of somewhere in between.
double LearningRate(const InnerOptions& options, double step, double steps);

class InnerOptimizer {
 public:
  // Its arrays, and those of its steps, are on the device. `count`: of the shard.
  InnerOptimizer(const InnerOptions& options, Device* device, int64_t count);

  // One step over the whole shard. `norm` is the gradient norm of the replica; gradients are scaled
  // when it is above the limit. `step` counts from 1.
  void Step(int64_t step, double lr, double norm, Array<float>* params, Array<float>* grads);

  // What it keeps: arrays as long as the shard.
  std::vector<Array<float>>& state() { return state_; }
  std::vector<void*> StatePointers();
  entrain_optim_t* handle() const { return optim_.get(); }

  // agd: the share of elements that the steps since the last call moved on the adaptive branch; on
  // this rank's part. Below 0: not agd.
  double TakeAdaptiveShare();

 private:
  const double grad_clip_;
  Device* const device_;
  OptimHandle optim_;
  std::vector<Array<float>> state_;
  entrain_optim_info_t taken_;  // as of the last TakeAdaptiveShare
};

}  // namespace trainer
