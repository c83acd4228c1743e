// The list of kernels. Each entry has a name, a struct of arguments, and a loop defined in loops.h.
#pragma once

#include <cstdint>

#include "lib/device/cuda/kernel_args.h"

#define ENTRAIN_CUDA_KERNELS(X)                             \
  X(cast_f32, CastArgs, CastFrom<float>)                    \
  X(cast_f64, CastArgs, CastFrom<double>)                   \
  X(cast_bf16, CastArgs, CastFrom<BF16>)                    \
  X(cast_f16, CastArgs, CastFrom<F16>)                      \
  X(cast_f8_e4m3, CastArgs, CastFrom<E4M3>)                 \
  X(cast_f8_e5m2, CastArgs, CastFrom<E5M2>)                 \
  X(accumulate_f32, AccumulateArgs, Accumulate<float>)      \
  X(accumulate_f64, AccumulateArgs, Accumulate<double>)     \
  X(accumulate_bf16, AccumulateArgs, Accumulate<BF16>)      \
  X(accumulate_f16, AccumulateArgs, Accumulate<F16>)        \
  X(accumulate_f8_e4m3, AccumulateArgs, Accumulate<E4M3>)   \
  X(accumulate_f8_e5m2, AccumulateArgs, Accumulate<E5M2>)   \
  X(scale_f32, ScaleArgs, Scale<float>)                     \
  X(scale_f64, ScaleArgs, Scale<double>)                    \
  X(scale_bf16, ScaleArgs, Scale<BF16>)                     \
  X(scale_f16, ScaleArgs, Scale<F16>)                       \
  X(scale_f8_e4m3, ScaleArgs, Scale<E4M3>)                  \
  X(scale_f8_e5m2, ScaleArgs, Scale<E5M2>)                  \
  X(scale_8, ScaleArgs, Scale<uint8_t>)                     \
  X(scale_16, ScaleArgs, Scale<uint16_t>)                   \
  X(scale_32, ScaleArgs, Scale<uint32_t>)                   \
  X(scale_64, ScaleArgs, Scale<uint64_t>)                   \
  X(weigh_f32, WeighArgs, Weigh<float>)                     \
  X(weigh_f64, WeighArgs, Weigh<double>)                    \
  X(weigh_bf16, WeighArgs, Weigh<BF16>)                     \
  X(weigh_f16, WeighArgs, Weigh<F16>)                       \
  X(weigh_f8_e4m3, WeighArgs, Weigh<E4M3>)                  \
  X(weigh_f8_e5m2, WeighArgs, Weigh<E5M2>)                  \
  X(weighted_delta, FloatsArgs, WeightedDelta)              \
  X(axpy, FloatsArgs, Axpy)                                 \
  X(ascend, FloatsArgs, Ascend)                             \
  X(add_sharpness, FloatsArgs, AddSharpness)                \
  X(square_of_delta, SumArgs, SquareOfDelta)                \
  X(sum_of_squares, SumArgs, SumOfSquares)                  \
  X(sum_of_squared_products, SumArgs, SumOfSquaredProducts) \
  X(find_bad_1, FiniteArgs, FindBad<uint8_t>)               \
  X(find_bad_2, FiniteArgs, FindBad<uint16_t>)              \
  X(find_bad_4, FiniteArgs, FindBad<uint32_t>)              \
  X(find_bad_8, FiniteArgs, FindBad<uint64_t>)              \
  X(sgd_step, SgdStepArgs, SgdStep)                         \
  X(adamw_step, AdamwStepArgs, AdamwStep)                   \
  X(lion_step, LionStepArgs, LionStep)                      \
  X(agd_step, AgdStepArgs, AgdStep)                         \
  X(outer_step, OuterStepArgs, OuterStep)

namespace entrain {

enum class KernelId : int32_t {
#define ENTRAIN_CUDA_ID(name, args, loop) name,
  ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_ID)
#undef ENTRAIN_CUDA_ID
      kCount
};
constexpr int kKernelCount = static_cast<int>(KernelId::kCount);

// Names in the module, such as "entrain_sgd_step".
constexpr const char* kKernelNames[] = {
#define ENTRAIN_CUDA_NAME(name, args, loop) "entrain_" #name,
    ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_NAME)
#undef ENTRAIN_CUDA_NAME
};
constexpr int64_t kKernelArgBytes[] = {
#define ENTRAIN_CUDA_BYTES(name, args, loop) sizeof(device_loops::args),
    ENTRAIN_CUDA_KERNELS(ENTRAIN_CUDA_BYTES)
#undef ENTRAIN_CUDA_BYTES
};

}  // namespace entrain
