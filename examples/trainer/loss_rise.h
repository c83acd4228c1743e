// How sharp the minimum is that training has found: how far the loss rises a way of length rho up
// the gradient. One thread.
#pragma once

#include <functional>
#include <vector>

#include "examples/trainer/task.h"

namespace trainer {

// Who shares the work: ranks 0 .. ranks - 1, and the sum over all of them, which every rank gets.
struct Sharing {
  int rank = 0, ranks = 1;
  std::function<void(double* values, int count)> sum;
};

// What computes: a pass of the device.
struct Computing {
  Device* device = nullptr;
  Pass* pass = nullptr;
};

// For each rho L(w + rho g / |g|) - L(w), where w are all `layers`, and L, with its gradient g, is
// the mean loss over as many training batches as validation has, the same for all runs of a seed.
// The same numbers on every rank. `layers` are in host memory, which gets another model, and the
// device two. Collective.
std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, const Computing& on,
                              const std::vector<std::vector<float>>& layers);

}  // namespace trainer
