// Sharpness-aware steps: the library's WSAM around the inner optimizer. Each step uses its batches
// twice. The second time, the parameters are w + e, where e is a step of length rho along the first
// gradient. No other unit uses the entrain_wsam_* calls. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/pass.h"
#include "examples/trainer/session.h"
#include "examples/trainer/whole_model.h"

namespace trainer {

// local: e follows the gradient of this rank's own batches over the whole model, and is added to
// the layers when they are gathered. A local perturbation needs no exchange. global: e follows the
// gradient averaged over the replica (in synchronous steps: over all ranks), and is added to this
// rank's part of the masters.
class Sharpness {
 public:
  // Wraps the steps of `base`, which must outlive the object. Clips gradients to `max_norm` (0: does not clip). `part` is the number of elements of
  // the rank's part.
  Sharpness(const WsamOptions& options, double max_norm, InnerOptimizer* base,
            const std::vector<int64_t>& layer_sizes, int64_t part);

  // If local, must be called for each layer of each backward pass of the first gradient. `grads` is
  // the gradient that the pass has added. `params` are the parameters of the pass.
  void AddOwn(int layer, const float* params, const float* grads);
  // Returns the parameters for a pass of the layer. For the second gradient of a local
  // perturbation: `params` moved by e. Otherwise: `params`. Valid until the next call.
  const float* Move(int layer, const float* params);

  // Must be called between the two gradients. Keeps the first gradient, sets *grads to zero, and
  // moves to w + e.
  void Ascend(Session* session, std::vector<float>* masters, std::vector<float>* grads);
  // Must be called after the second gradient. Returns to w and makes the step.
  void Step(int64_t step, double lr, Session* session, std::vector<float>* masters,
            const std::vector<float>& grads);

  // Returns the time spent waiting for sums over the replica.
  double waited_s() const { return waited_s_; }

 private:
  void Sum(Session* session, double* values, int count);

  const bool local_;
  const double max_norm_;
  InnerOptimizer* const base_;
  OptimHandle wsam_;
  bool second_ = false;                  // true between Ascend and Step
  std::vector<float> first_, saved_;     // the rank's part: the first gradient; global only: w
  std::vector<std::vector<float>> own_;  // local: this rank's first gradient, by layer
  std::vector<double> own_sums_;         // by layer, for the norm of own_
  double own_sum_ = 0.0;
  std::vector<float> moved_, unmoved_;  // local: one layer at w + e, and the layer before that
  double waited_s_ = 0.0;
};

// Coupled steps for a gradient channel, with a local perturbation for each micro-batch. The channel
// clips the sum of the gradients that Add makes, and its optimizer steps with this sum.
class CoupledSharpness {
 public:
  // `base` and `model` must outlive the object.
  CoupledSharpness(const WsamOptions& options, const InnerOptimizer& base, WholeModel* model);

  // Adds alpha g2 + (1 - alpha) g to `sums`, for the batch in `pass` and the whole model. g is the
  // gradient at the model's parameters, g2 the gradient at w + e. Returns the loss of the first
  // pass.
  double Add(Pass* pass, float* sums);

 private:
  WholeModel* const model_;
  OptimHandle wsam_;
  std::vector<float> first_;                     // g, of the whole model
  std::vector<float> second_, moved_, unmoved_;  // one layer: g2; w + e; w
};

}  // namespace trainer
