#include "examples/trainer/loss_rise.h"

#include <cmath>

namespace trainer {
namespace {

constexpr int kNoRank = -1, kNoReplica = -1;  // no run learns from their batches

using Layers = std::vector<std::vector<float>>;

// Returns the mean loss over the batches. If `grads` is not null, adds this rank's share of the
// gradient to it.
double MeanLoss(const Task& task, const Sharing& sharing, Pass* pass, const Layers& layers,
                Layers* grads) {
  const int64_t batches = task.validation_batches();
  double loss = 0.0;
  Batch batch;
  for (int64_t number = sharing.rank; number < batches; number += sharing.ranks) {
    task.DrawTraining(kNoRank, kNoReplica, number, &batch);
    pass->SetBatch(batch);
    for (size_t l = 0; l < layers.size(); ++l) {
      pass->Forward(static_cast<int>(l), layers[l].data());
    }
    for (size_t l = layers.size(); grads != nullptr && l-- > 0;) {
      pass->Backward(static_cast<int>(l), layers[l].data(), 1.0f / static_cast<float>(batches),
                     (*grads)[l].data());
    }
    loss += pass->loss() / static_cast<double>(batches);
  }
  sharing.sum(&loss, 1);
  return loss;
}

// Replaces each rank's share by the sum over all ranks. Returns the norm of the sum.
double SumAll(const Sharing& sharing, Layers* grads) {
  double squares = 0.0;
  std::vector<double> wide;
  for (std::vector<float>& layer : *grads) {
    wide.assign(layer.begin(), layer.end());
    sharing.sum(wide.data(), static_cast<int>(wide.size()));
    for (size_t i = 0; i < layer.size(); ++i) {
      squares += wide[i] * wide[i];
      layer[i] = static_cast<float>(wide[i]);
    }
  }
  return std::sqrt(squares);
}

}  // namespace

std::vector<double> LossRises(const std::vector<double>& rhos, const Task& task,
                              const Sharing& sharing, Pass* pass, const Layers& layers) {
  std::vector<double> rises;
  if (rhos.empty()) {
    return rises;
  }
  Layers grads;
  for (const std::vector<float>& layer : layers) {
    grads.emplace_back(layer.size());
  }
  const double here = MeanLoss(task, sharing, pass, layers, &grads);
  const double norm = SumAll(sharing, &grads);
  for (const double rho : rhos) {
    const double way = norm > 0.0 ? rho / norm : 0.0;
    Layers moved = layers;
    for (size_t l = 0; l < layers.size(); ++l) {
      for (size_t i = 0; i < moved[l].size(); ++i) {
        moved[l][i] += static_cast<float>(way * static_cast<double>(grads[l][i]));
      }
    }
    rises.push_back(MeanLoss(task, sharing, pass, moved, nullptr) - here);
  }
  return rises;
}

}  // namespace trainer
