// The sharpness of the minimum that training has found: the rise of the loss after a step of length
// rho along the gradient. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <vector>

#include "examples/trainer/task.h"

namespace trainer {

// `rank`: this rank's number among the ranks that share the work. `ranks`: the number of these
// ranks. `sum`: adds the values over these ranks, and gives every rank the sums.
struct Sharing {
  int rank = 0, ranks = 1;
  std::function<void(double* values, int count)> sum;
};

// Returns L(w + rho g / |g|) - L(w) for each rho. w is the vector of all `layers`. L is the mean
// loss over training batches, and g its gradient. The number of these batches is that of the
// validation batches. All runs with the same seed use the same batches. The results are equal on
// every rank. The function needs memory for two more models. Collective.
std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, Pass* pass,
                              const std::vector<std::vector<float>>& layers);

}  // namespace trainer
