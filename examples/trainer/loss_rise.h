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

// For each rho L(w + rho g / |g|) - L(w), where w are all `layers`, and L, with its gradient g, is
// the mean loss over as many training batches as validation has, the same for all runs of a seed.
// The same numbers on every rank. Keeps three times the model in memory. Collective.
std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, Pass* pass,
                              const std::vector<std::vector<float>>& layers);

}  // namespace trainer
