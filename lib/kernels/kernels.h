// The loops over elements: one table of functions per instruction set, chosen once at start-up. Every loop is written
// once (kernels_impl.inc) and compiled per instruction set (kernels_{base,avx2,avx512}.cc).
//
// All functions: pointers need only the element's own alignment; counts >= 0; dst may be the same as any source
// (element-wise), but not overlap it partly. f16 and bf16 are computed in f32 and rounded to nearest even once.
// Results do not depend on the instruction set: element-wise loops are bit-identical across tables (no fused
// multiply-add; which of two NaNs a sum gives may differ), sums of squares are accumulated in double in a fixed order that all share.
#pragma once

#include <cstdint>

#include "lib/base/call.h"
#include "lib/base/dtype.h"

namespace entrain {

// Parameters of one SGD step: p is the master, b the momentum (may be null when momentum is 0).
struct SgdArgs {
  double lr, momentum, weight_decay;
  bool nesterov, first_step;  // first_step: b ← g
};
// Parameters of one AdamW step; correction1 and 2 are 1 - beta^t.
struct AdamwArgs {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
};

struct Kernels {
  const char* name;  // "base", "avx2", "avx512"
  // dst = srcs[0] ⊕ srcs[1] ⊕ ... in this order, count elements each; divide > 1: the sum is divided by it.
  // Built-in ops (avg: as sum) and all types but fp8. n >= 1. 16-bit floats accumulate in f32 over all n and round once.
  void (*combine)(ReduceOp op, DType dtype, void* dst, const void* const* srcs, int n,
                  int64_t count, int divide);
  // dst[i] = src[i] converted between f32, bf16 and f16 (any pair; equal types copy), or between f32 and f64.
  void (*cast)(void* dst, DType to, const void* src, DType from, int64_t count);
  // delta = anchor - params; returns the sum of squares of delta.
  double (*delta_and_norm)(float* delta, const float* anchor, const float* params, int64_t count);
  double (*sum_of_squares)(const float* x, int64_t count);
  // x *= a;  y += a * x (product rounded, then sum rounded);  x += y
  void (*scale)(float* x, float a, int64_t count);
  void (*axpy)(float* y, float a, const float* x, int64_t count);
  // acc[i] += float(src[i]): gradients (f32, f64, bf16, f16) into an f32 accumulator.
  void (*accumulate)(float* acc, const void* src, DType from, int64_t count);
  // Whether there is no NaN and no infinity; true for integers.
  bool (*all_finite)(const void* x, DType dtype, int64_t count);
  // out may be p (commit) or other memory (preview); when out != p, p and the state stay untouched.
  void (*sgd)(const SgdArgs& args, float* out, float* p, const float* g, float* b, int64_t count);
  void (*adamw)(const AdamwArgs& args, float* out, float* p, const float* g, float* m, float* v,
                int64_t count);
  // EDiT K4: g = beta * mean; b = mu * b + g; a -= eta * (g + mu * b) (nesterov) or eta * b; params = a.
  void (*outer_step)(const SgdArgs& args, float beta, float* anchor, float* momentum, float* params,
                     const float* mean, int64_t count);
};

// The best table this CPU can run.
const Kernels& BestKernels();
// Every table this CPU can run, for tests; the first is "base".
struct KernelTables {
  const Kernels* tables[3];
  int count;
};
KernelTables AllKernels();

}  // namespace entrain
