// Sharpness-aware steps: WSAM of the library around the inner optimizer. Each step sees its batches
// twice, the second time at w + e, a way of length rho up the first gradient. All entrain_wsam_*
// calls. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/device.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/inner_optimizer.h"
#include "examples/trainer/pass.h"
#include "examples/trainer/session.h"
#include "examples/trainer/whole_model.h"

namespace trainer {

// local: e is along the gradient of this rank's own batches, over the whole model, and applied to
// the layers as they are gathered; nothing is exchanged for it. global: along the gradient that is
// averaged over the replica (synchronous steps: over all ranks), on the rank's part of the masters.
class Sharpness {
 public:
  // `base`, whose steps these become, and the device, on which all arrays are, must outlive the
  // object. Gradients are clipped to `max_norm` (0: not). `part`: elements of the rank's part.
  Sharpness(const WsamOptions& options, double max_norm, InnerOptimizer* base, Device* device,
            const std::vector<int64_t>& layer_sizes, int64_t part);

  // Of each layer of each backward pass of the first gradient, local: what it added, and the
  // parameters it was taken at.
  void AddOwn(int layer, const float* params, const float* grads);
  // What the layer's passes see: `params`, or, local and for the second gradient, those moved by e,
  // until the next call.
  const float* Move(int layer, const float* params);

  // Between both gradients: keeps the first, which leaves *grads zero, and ascends.
  void Ascend(Session* session, Array<float>* masters, Array<float>* grads);
  // After the second one: returns to w, and steps.
  void Step(int64_t step, double lr, Session* session, Array<float>* masters,
            const Array<float>& grads);

  // Time spent waiting for sums over the replica.
  double waited_s() const { return waited_s_; }

 private:
  void Sum(Session* session, double* values, int count);

  const bool local_;
  const double max_norm_;
  InnerOptimizer* const base_;
  Device* const device_;
  WsamHandle wsam_;
  bool second_ = false;            // between Ascend and Step
  Array<float> first_, saved_;     // of the rank's part: the first gradient; global: w
  std::vector<Array<float>> own_;  // local: the first gradient of this rank, by layer
  std::vector<double> own_sums_;   // of each layer of it, for the norm
  double own_sum_ = 0.0;
  Array<float> moved_, unmoved_;  // local: one layer at w + e, and what it was before
  double waited_s_ = 0.0;
};

// For a gradient channel: coupled steps, local, a micro-batch at a time. The channel clips, and its
// optimizer steps with, the sum of what Add makes.
class CoupledSharpness {
 public:
  // `base`, `device` and `model` must outlive the object.
  CoupledSharpness(const WsamOptions& options, const InnerOptimizer& base, Device* device,
                   WholeModel* model);

  // Adds alpha g2 + (1 - alpha) g of the batch that the pass has to `sums`, of the whole model: g
  // at its parameters, g2 at w + e. Returns the loss of the first pass.
  double Add(Pass* pass, float* sums);

 private:
  Device* const device_;
  WholeModel* const model_;
  WsamHandle wsam_;
  Array<float> first_;                     // g, of the whole model
  Array<float> second_, moved_, unmoved_;  // one layer: g2; w + e; w
};

}  // namespace trainer
