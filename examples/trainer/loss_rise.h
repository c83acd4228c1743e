// The sharpness of the minimum that training has found: how far the loss rises after a step of
// length rho along the gradient. One thread.
#pragma once

#include <functional>
#include <vector>

#include "examples/trainer/task.h"

namespace trainer {

// The ranks that share the work, 0 .. ranks - 1, and a function that sums over all of them and
// gives every rank the sum.
struct Sharing {
  int rank = 0, ranks = 1;
  std::function<void(double* values, int count)> sum;
};

// The device and the pass that compute.
struct Computing {
  Device* device = nullptr;
  Pass* pass = nullptr;
};

// Returns L(w + rho g / |g|) - L(w) for each rho, where w are all `layers`, and L, with its
// gradient g, is the mean loss over as many training batches as validation has. The batches are
// equal for all runs of a seed, and the results are equal on every rank. `layers` are in host
// memory. The function needs memory for one more model on the host and for two on the device.
// Collective.
std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, const Computing& on,
                              const std::vector<std::vector<float>>& layers);

}  // namespace trainer
