#include "lib/train/shard/layer_arrays.h"

#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {

LayerArrays LayerArrays::OfSlab(const Slab& slab, void* params, void* grads, DType dtype) {
  LayerArrays arrays;
  arrays.dtype = dtype;
  for (int l = 0; l < slab.layers(); ++l) {
    const int64_t offset = slab.layer(l).offset * SizeOf(dtype);
    arrays.params.push_back(static_cast<std::byte*>(params) + offset);
    arrays.grads.push_back(static_cast<std::byte*>(grads) + offset);
  }
  return arrays;
}

void LayerArrays::Read(int layer, float* to, int64_t count) const {
  if (dtype == DType::kF32) {
    CopyShared(to, param(layer), count * static_cast<int64_t>(sizeof(float)));
  } else {
    SharedKernels().cast(to, DType::kF32, param(layer), dtype, count);
  }
}

void LayerArrays::Write(int layer, const float* from, int64_t count) const {
  if (dtype == DType::kF32) {
    CopyShared(param(layer), from, count * static_cast<int64_t>(sizeof(float)));
  } else {
    SharedKernels().cast(param(layer), dtype, from, DType::kF32, count);
  }
}

}  // namespace entrain
