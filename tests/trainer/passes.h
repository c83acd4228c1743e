// Functions by which tests of models run a pass with parameters of the test.
#pragma once

#include <cstddef>
#include <vector>

#include "examples/trainer/pass.h"

namespace trainer {

using Parameters = std::vector<std::vector<float>>;  // by layer

inline Parameters ZerosLike(const Parameters& params) {
  Parameters zeros;
  for (const auto& layer : params) {
    zeros.emplace_back(layer.size());
  }
  return zeros;
}

// Returns the loss of the pass's batch.
inline double Loss(Pass* pass, const Parameters& params) {
  for (size_t l = 0; l < params.size(); ++l) {
    pass->Forward(static_cast<int>(l), params[l].data());
  }
  return pass->loss();
}

// Must be called after Loss.
inline void AddGradient(Pass* pass, const Parameters& params, float scale, Parameters* grads) {
  for (size_t l = params.size(); l-- > 0;) {
    pass->Backward(static_cast<int>(l), params[l].data(), scale, (*grads)[l].data());
  }
}

}  // namespace trainer
