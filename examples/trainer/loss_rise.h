// The sharpness of the minimum that training has found: the rise of the loss after a step of length
// rho along the gradient. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <vector>

#include "examples/trainer/task.h"

namespace trainer {

// This rank's number among the ranks that share the work, the number of these ranks, and a function
// that sums over all of them and gives every rank the sum.
struct Sharing {
  int rank = 0, ranks = 1;
  std::function<void(double* values, int count)> sum;
};

// The device and the pass that compute.
struct Computing {
  Device* device = nullptr;
  Pass* pass = nullptr;
};

// Returns L(w + rho g / |g|) - L(w) for each rho. w is the vector of all `layers`. L is the mean
// loss over training batches, and g its gradient. There are as many of these batches as validation
// batches. The batches are equal for all runs of a seed, and the results are equal on every rank.
// `layers` are in host memory. The function needs memory for one more model on the host and for two
// on the device. Collective.
std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, const Computing& on,
                              const std::vector<std::vector<float>>& layers);

}  // namespace trainer
