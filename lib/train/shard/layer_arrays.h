// The caller's parameters (theta) and gradients: for each layer, a pointer to this rank's shard.
// OfSlab makes these pointers from slabs; a slab holds the shards of all layers in one array
// (slab.h).
//
// Thread safety: as a std::vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/train/shard/slab.h"

namespace entrain {

struct LayerArrays {
  DType dtype = DType::kF32;       // type of parameters and gradients: kF32 or kBF16
  std::vector<std::byte*> params;  // by layer: p_l elements; empty: not bound
  std::vector<std::byte*> grads;   // as params; empty: the caller reduces gradients itself

  // Makes the pointers to two slabs of slab.count() elements each.
  static LayerArrays OfSlab(const Slab& slab, void* params, void* grads, DType dtype);

  bool bound() const { return !params.empty(); }
  std::byte* param(int layer) const { return params[static_cast<size_t>(layer)]; }
  std::byte* grad(int layer) const { return grads[static_cast<size_t>(layer)]; }
  // Returns the layer's parameters, or null if they are not f32.
  float* f32(int layer) const {
    return dtype == DType::kF32 ? reinterpret_cast<float*>(param(layer)) : nullptr;
  }
  // Reads the first `count` parameters of the layer's shard as f32.
  void Read(int layer, float* to, int64_t count) const;
  // Writes the first `count` parameters of the layer's shard. If `dtype` is not kF32, rounds to
  // nearest even.
  void Write(int layer, const float* from, int64_t count) const;
};

}  // namespace entrain
