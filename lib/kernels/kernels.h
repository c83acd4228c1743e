// The loops over elements: one table of functions per instruction set, chosen once at start-up.
// Each loop is written once (kernels_impl.inc) and compiled per instruction set
// (kernels_{base,avx2,avx512,neon}.cc).
//
// Rules for all functions: pointers need only the element's own alignment, and counts are >= 0. dst
// may be equal to any source of an element-wise function, but must not overlap a source partly.
// Floats of 16 and 8 bits are computed in f32 and rounded once, to nearest even. Results do not
// depend on the instruction set. Element-wise loops are bit-identical across tables: they use no
// fused multiply-add. (If both operands are NaN, tables may differ in which NaN the sum keeps.)
// Sums of squares are accumulated in double in one fixed order.
#pragma once

#include <cstdint>

#include "lib/base/call.h"
#include "lib/base/dtype.h"
#include "lib/base/merging.h"

namespace entrain {

// Parameters of one SGD step. p is the master copy; b is the momentum, which may be null if
// `momentum` is 0.
struct SgdArgs {
  double lr, momentum, weight_decay;
  bool nesterov, first_step;  // first_step: b ← g
};
// Parameters of one AdamW step; correction1 and 2 are 1 - beta^t.
struct AdamwArgs {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
};
struct LionArgs {
  double lr, beta1, beta2, weight_decay;
};
// Parameters of one AGD step, computed in double from the hyper-parameters and the number of the
// step. The numbers in parentheses are those of the rule in lib/optim/rules.h.
struct AgdArgs {
  double p_factor;           // (1): 1 - eta lambda, 1 - lambda, or 1
  double coupled_lambda;     // (1): g + coupled_lambda p takes the place of g
  double beta1, beta2;       // (2), (5)
  double rest1_over_c1;      // (4): (1 - beta1) / c1
  double inverse_c1_before;  // (4): 1 / c1'; 0 at the first step
  double delta_root_c2;      // (7): delta sqrt(c2); > 0
  double clip;               // (8); infinity: none
  double a;                  // (9): eta sqrt(c2) / c1
  double lambda;             // (10), (11)
  bool first_step;           // (10): z starts at p
};
// Arrays of one AGD step. An array is null if the variant does not use it.
struct AgdArrays {
  float *out, *p;
  const float* g;
  float *m, *b, *largest, *z;  // `largest` is for amsgrad, `z` for win
};
// out = keep * base + rate * (second * g2 - first * g). WSAM (lib/optim/wsam.h) uses it to
// apply the change of the gradient.
struct SharpnessArgs {
  double keep, rate, first, second;
};

struct Kernels {
  const char* name;  // "base", "avx2", "avx512", "neon"
  // dst = srcs[0] ⊕ srcs[1] ⊕ ... in this order, `count` elements each, n >= 1. If divide > 1,
  // divides the sum by it. Takes the built-in ops on the types that CheckReduction allows. kAvg
  // counts as kSum, and only sums are divided. Floats of 16 and 8 bits are accumulated in f32 over
  // all n and rounded once. Logical ops give 1 or 0, even for a single source.
  void (*combine)(ReduceOp op, DType dtype, void* dst, const void* const* srcs, int n,
                  int64_t count, int divide);
  // dst[i] = src[i], converted between any two float types and rounded once. Equal types are
  // copied.
  void (*cast)(void* dst, DType to, const void* src, DType from, int64_t count);
  // EDiT K1: returns the sum of squares of anchor - params, with rounded differences. Works on any
  // two arrays.
  double (*square_of_delta)(const float* anchor, const float* params, int64_t count);
  // EDiT K2: delta = weight * (anchor - params). The difference is rounded first, then the product.
  void (*weighted_delta)(float* delta, const float* anchor, const float* params, float weight,
                         int64_t count);
  double (*sum_of_squares)(const float* x, int64_t count);
  // Returns the sum of (x[i] * y[i])^2. The product of two f32 is exact in double.
  double (*sum_of_squared_products)(const float* x, const float* y, int64_t count);
  // y += a * x. The product is rounded first, then the sum.
  void (*axpy)(float* y, float a, const float* x, int64_t count);
  // dst = factor * src. Floats: the factor and the product are rounded to f32, then the product is
  // rounded once to the type. f64: all in f64. Integers: the factor must be a whole number from
  // -2^63 to below 2^64, and products wrap. Types of pairs are not allowed.
  void (*scale_any)(DType dtype, void* dst, const void* src, int64_t count, double factor);
  // dst = weights[0] * srcs[0] + weights[1] * srcs[1] + ... in this order, n >= 1. Floats only:
  // each weight, product and sum is rounded to f32 (f64: to f64), and the last sum is rounded once
  // to the type.
  void (*combine_weighted)(DType dtype, void* dst, const void* const* srcs, const double* weights,
                           int n, int64_t count);
  // Merges with consensus as lib/base/merging.h defines it: dst = the sum of weights[j] * srcs[j]
  // over the terms that have the elected sign. If `normalize`, divides the sum by the sum of the
  // weights of these terms. Floats only, n >= 1, no weight is 0. Computes in f32 (f64: in f64), in
  // the order of the sources, and rounds the result once.
  void (*combine_agreeing)(Consensus consensus, bool normalize, DType dtype, void* dst,
                           const void* const* srcs, const double* weights, int n, int64_t count);
  // acc[i] += float(src[i]): adds gradients of any float type to an f32 accumulator.
  void (*accumulate)(float* acc, const void* src, DType from, int64_t count);
  // Returns true if there is no NaN and no infinity; always true for integers. In pairs, checks the
  // values only.
  bool (*all_finite)(const void* x, DType dtype, int64_t count);
  // `out` may be p (commit) or other memory (preview). If out != p, p and the state do not change.
  void (*sgd)(const SgdArgs& args, float* out, float* p, const float* g, float* b, int64_t count);
  void (*adamw)(const AdamwArgs& args, float* out, float* p, const float* g, float* m, float* v,
                int64_t count);
  void (*lion)(const LionArgs& args, float* out, float* p, const float* g, float* m, int64_t count);
  // Returns the number of elements with sqrt(v) >= delta_root_c2; 0 when out != p.
  int64_t (*agd)(const AgdArgs& args, const AgdArrays& arrays, int64_t count);
  // saved = p, then p += scale * g, or scale * (p^2 * g) if `adaptive`.
  void (*ascend)(bool adaptive, float scale, float* p, float* saved, const float* g, int64_t count);
  // `out` may be `base`.
  void (*add_sharpness)(const SharpnessArgs& args, float* out, const float* base, const float* g,
                        const float* g2, int64_t count);
  // EDiT K4: g = scale * mean; b = mu * b + g; a -= eta * (g + mu * b) (nesterov) or eta * b; params = a.
  void (*outer_step)(const SgdArgs& args, float scale, float* anchor, float* momentum,
                     float* params, const float* mean, int64_t count);
};

// Returns the best table that this CPU can run.
const Kernels& BestKernels();
// Returns all tables that this CPU can run, for tests. The first is "base".
struct KernelTables {
  const Kernels* tables[5];
  int count;
};
KernelTables AllKernels();

}  // namespace entrain
