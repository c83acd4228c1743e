// The loops over the elements of large arrays, as a table of functions (Kernels) for each
// instruction set. kernels_impl.inc has the loops. One source file per table compiles it
// (CMakeLists.txt).
//
// Rules for all functions:
// - A pointer needs only the alignment of its element type. Counts are >= 0.
// - In an element-wise function, dst may be equal to a source. It must not overlap a source in any
//   other way.
// - Floats of 16 and 8 bits give the result of a computation in f32 that is rounded once, to
//   nearest even.
// - All tables give the same bits. They use no fused multiply-add. Sums of squares are accumulated
//   in double, in a fixed order. One exception: if both operands of a sum are NaN, tables may keep
//   different NaNs.
#pragma once

#include <cstdint>

#include "lib/base/call.h"
#include "lib/base/dtype.h"
#include "lib/base/merging.h"

namespace entrain {

// Parameters of one SGD step. In `sgd`, p is the f32 parameters and b the momentum; b may be null
// if `momentum` is 0.
struct SgdArgs {
  double lr, momentum, weight_decay;
  bool nesterov, first_step;  // first_step: b = g
};
// Parameters of one AdamW step. correction1 is 1 - beta1^t, correction2 is 1 - beta2^t.
struct AdamwArgs {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
};
struct LionArgs {
  double lr, beta1, beta2, weight_decay;
};
// Parameters of one AGD step. The caller computes them in double from the hyper-parameters and the
// number of the step. The numbers in parentheses are the equations in lib/optim/rules.h.
struct AgdArgs {
  double p_factor;           // (1): 1 - eta lambda, 1 - lambda, or 1
  double coupled_lambda;     // (1): the gradient is g + coupled_lambda p
  double beta1, beta2;       // (2), (5)
  double rest1_over_c1;      // (4): (1 - beta1) / c1
  double inverse_c1_before;  // (4): 1 / c1'; 0 at the first step
  double delta_root_c2;      // (7): delta sqrt(c2); > 0
  double clip;               // (8); infinity: no clipping
  double a;                  // (9): eta sqrt(c2) / c1
  double lambda;             // (10), (11)
  bool first_step;           // (10): z' is p
};
// Arrays of one AGD step. An array that the variant does not use is null.
struct AgdArrays {
  float *out, *p;
  const float* g;
  float *m, *b, *largest, *z;  // largest: with amsgrad; z: with win
};
// out = keep * base + rate * (second * g2 - first * g). WSAM (lib/optim/wsam.h) adds its sharpness
// term in this way.
struct SharpnessArgs {
  double keep, rate, first, second;
};

constexpr int kHashChains = 32;
constexpr int64_t kHashStep = 2 * kHashChains;  // elements

// The table of a device (Device::kernels) has only some of these functions. The others are null.
struct Kernels {
  const char* name;  // the instruction set: "base", "avx2", ...
  // dst = srcs[0] ⊕ srcs[1] ⊕ ... in this order. There are n >= 1 sources of `count` elements.
  // Takes the built-in operators on the types that CheckReduction allows. kAvg is computed as kSum.
  // If divide > 1, the operator must be a sum, and the sum is divided by `divide`. Floats of 16 and
  // 8 bits are accumulated in f32 over all sources, and rounded once. A sum of integers that is
  // divided does not wrap around: |sum / divide| must be at most the largest element, n and divide
  // at most 2^16. Logical operators give 1 or 0, even for a single source.
  void (*combine)(ReduceOp op, DType dtype, void* dst, const void* const* srcs, int n,
                  int64_t count, int divide);
  // dst[i] = src[i], converted from any float type to any other and rounded once. Copies if the
  // types are equal.
  void (*cast)(void* dst, DType to, const void* src, DType from, int64_t count);
  // Returns the sum of the squares of anchor - params. Each difference is rounded to f32. Pass K1
  // of docs/training.md, but any two arrays will do.
  double (*square_of_delta)(const float* anchor, const float* params, int64_t count);
  // delta = weight * (anchor - params). The difference is rounded first, then the product. Pass K2
  // of docs/training.md.
  void (*weighted_delta)(float* delta, const float* anchor, const float* params, float weight,
                         int64_t count);
  double (*sum_of_squares)(const float* x, int64_t count);
  // Mixes the bits of x into the kHashChains words of `chains`. `count` must be a multiple of
  // kHashStep. The 64-bit word i of x goes to chain c = i % kHashChains: chain = (chain ^ word) *
  // 0x100000001b3 (FNV-1a over words).
  void (*hash)(uint64_t* chains, const float* x, int64_t count);
  // Returns the sum of the squares of x[i] * y[i]. The product of two f32 is exact in double.
  double (*sum_of_squared_products)(const float* x, const float* y, int64_t count);
  // y += a * x. The product is rounded first, then the sum.
  void (*axpy)(float* y, float a, const float* x, int64_t count);
  // dst = factor * src.
  //   f64: all in f64.
  //   Other floats: the factor and the product are rounded to f32, then the product is rounded to
  //   the type.
  //   Integers: the factor must be a whole number from -2^63 to below 2^64. Products wrap around.
  //   Pairs: not allowed.
  void (*scale_any)(DType dtype, void* dst, const void* src, int64_t count, double factor);
  // dst = weights[0] * srcs[0] + weights[1] * srcs[1] + ... in this order, n >= 1. Floats only.
  // Each weight, product and sum is rounded to f32 (f64: to f64). The last sum is rounded to the
  // type.
  void (*combine_weighted)(DType dtype, void* dst, const void* const* srcs, const double* weights,
                           int n, int64_t count);
  // Merges with consensus, see lib/base/merging.h. dst = the sum of the terms weights[j] * srcs[j]
  // that have the elected sign. If `normalize`, divides the sum by the sum of the weights of these
  // terms. Floats only, n >= 1, no weight is 0. Computes in f32 (f64: in f64), in the order of the
  // sources. Rounds the result once.
  void (*combine_agreeing)(Consensus consensus, bool normalize, DType dtype, void* dst,
                           const void* const* srcs, const double* weights, int n, int64_t count);
  // acc[i] += float(src[i]). Adds gradients of any float type to an f32 accumulator.
  void (*accumulate)(float* acc, const void* src, DType from, int64_t count);
  // Returns true if no value is NaN or infinite. Always true for integers. Ignores the locations of
  // pairs.
  bool (*all_finite)(const void* x, DType dtype, int64_t count);
  // The next four functions make one optimizer step. If out == p, the step changes the parameters
  // and the optimizer's state. If out != p, the step is a preview: it writes the new parameters to
  // `out` and changes neither p nor the state.
  void (*sgd)(const SgdArgs& args, float* out, float* p, const float* g, float* b, int64_t count);
  void (*adamw)(const AdamwArgs& args, float* out, float* p, const float* g, float* m, float* v,
                int64_t count);
  void (*lion)(const LionArgs& args, float* out, float* p, const float* g, float* m, int64_t count);
  // Returns the number of elements for which sqrt(v) >= delta_root_c2. Returns 0 if out != p.
  int64_t (*agd)(const AgdArgs& args, const AgdArrays& arrays, int64_t count);
  // saved = p, then p += scale * g. If `adaptive`: p += scale * (p^2 * g).
  void (*ascend)(bool adaptive, float scale, float* p, float* saved, const float* g, int64_t count);
  // `out` may be equal to `base`.
  void (*add_sharpness)(const SharpnessArgs& args, float* out, const float* base, const float* g,
                        const float* g2, int64_t count);
  // One outer step of EDiT, pass K4 of docs/training.md. eta is args.lr, mu is args.momentum.
  //   g = scale * mean;  b = mu * b + g
  //   anchor -= eta * (g + mu * b) with nesterov, else eta * b;  params = anchor
  void (*outer_step)(const SgdArgs& args, float scale, float* anchor, float* momentum,
                     float* params, const float* mean, int64_t count);
};

// Returns the fastest table that this CPU can run.
const Kernels& BestKernels();
// Returns all tables that this CPU can run, for tests. The first is "base", the last is the
// fastest.
struct KernelTables {
  const Kernels* tables[5];
  int count;
};
KernelTables AllKernels();

// The tables of all instruction sets. Each is in the namespace of its source file. CMakeLists.txt
// decides which of them are built for a target architecture.
namespace base {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512bf16 {
extern const Kernels kKernels;
}
namespace avx512fp16 {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}

}  // namespace entrain
