#include "lib/comm/contribution.h"

#include "lib/kernels/kernels.h"
#include "lib/kernels/merge.h"

namespace entrain {

bool ContributionDiffers(const Call& call, int size) {
  return (call.reduction.op == ReduceOp::kPreMultipliedSum && call.reduction.factor != 1) ||
         (call.reduction.merging != nullptr && !call.reduction.merging->Packs() && size == 1);
}

void Contribute(const Call& call, void* dst, const void* src, int64_t count) {
  if (call.reduction.merging != nullptr) {
    Merge(BestKernels(), *call.reduction.merging, call.dtype, dst, {&src, 1}, count);
  } else {
    BestKernels().scale_any(call.dtype, dst, src, count, call.reduction.factor);
  }
}

bool IsPacked(const Call& call) {
  return call.reduction.merging != nullptr && call.reduction.merging->Packs();
}

}  // namespace entrain
