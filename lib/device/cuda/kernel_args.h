// The arguments of each kernel: plain structs, which both nvcc and the host's compiler compile.
#pragma once

#include <cstdint>

namespace entrain::device_loops {

constexpr int kThreads = 256;      // threads of a block
constexpr int kMostBlocks = 512;   // for a kernel with one result per block: all blocks run at once
constexpr int kMostSources = 240;  // most sources of a launch: arguments have at most 4 KiB

// The elements from `head` on are processed in packs, which are aligned in all arrays. The elements
// before `head`, and those behind the last whole pack, are processed one by one.
struct Range {
  int64_t count, head;
};

// Types, named like their kernels.
enum class FloatType : int32_t { kF32, kF64, kBF16, kF16, kF8E4M3, kF8E5M2 };

// ForEachPointer calls f for each pointer among the arguments, so that a test can check and
// translate the pointers.
struct CastArgs {
  Range range;
  void* out;
  const void* in;
  FloatType to;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(in);
  }
};

struct AccumulateArgs {
  Range range;
  float* acc;
  const void* in;
  template <typename F>
  void ForEachPointer(F f) {
    f(acc);
    f(in);
  }
};

struct ScaleArgs {
  Range range;
  void* out;
  const void* in;
  double factor;   // for floats
  uint64_t whole;  // for integers, modulo 2^64
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(in);
  }
};

struct WeighArgs {
  Range range;
  void* out;
  int32_t n;
  const void* srcs[kMostSources];
  double weights[kMostSources];
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    for (int j = 0; j < n; ++j) {
      f(srcs[j]);
    }
  }
};

// out = f(a, b, ...). Unused pointers are null.
struct FloatsArgs {
  Range range;
  float *out, *second;  // second: a second result
  const float *a, *b, *c;
  float u, v, w, x;
  bool flag;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(second);
    f(a);
    f(b);
    f(c);
  }
};

// Block k of at most kMostBlocks writes results[k].
struct SumArgs {
  Range range;  // head: 0, or count if packs are unaligned
  const float *x, *y;
  double* results;
  template <typename F>
  void ForEachPointer(F f) {
    f(x);
    f(y);
    f(results);
  }
};

struct FiniteArgs {
  Range range;
  const void* in;
  uint64_t exponent;  // an element with all these bits is not finite
  int32_t stride;     // 1 or 2: only the first of every `stride` values is checked
  double* results;    // its first word becomes 1 if such an element is found
  template <typename F>
  void ForEachPointer(F f) {
    f(in);
    f(results);
  }
};

struct SgdStepArgs {
  Range range;
  float* out;
  const float *p, *g;
  float* b;
  float lr, mu, decay;
  bool momentum, nesterov, first_step, store;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(p);
    f(g);
    f(b);
  }
};

struct OuterStepArgs {
  Range range;
  float *anchor, *momentum, *params;
  const float* mean;
  float scale, eta, mu;
  bool nesterov, first_step;  // `momentum` is null: no momentum
  template <typename F>
  void ForEachPointer(F f) {
    f(anchor);
    f(momentum);
    f(params);
    f(mean);
  }
};

struct AdamwStepArgs {
  Range range;
  float* out;
  const float *p, *g;
  float *m, *v;
  float keep, beta1, rest1, beta2, rest2, rate, root2, eps;
  bool store;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(p);
    f(g);
    f(m);
    f(v);
  }
};

struct LionStepArgs {
  Range range;
  float* out;
  const float *p, *g;
  float* m;
  float keep, beta1, rest1, beta2, rest2, rate;
  bool store;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(p);
    f(g);
    f(m);
  }
};

struct AgdStepArgs {
  Range range;
  float* out;
  const float *p, *g;
  float *m, *b, *largest, *z;
  float p_factor, coupled_lambda, beta1, rest1, beta2, rest2, rest1_over_c1, inverse_c1_before,
      delta_root_c2, clip, a, a_lambda, inverse_1_a_lambda, twice_tau;
  bool first_step, store;
  double* results;  // as in SumArgs: numbers of adaptive elements; null: not wanted
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(p);
    f(g);
    f(m);
    f(b);
    f(largest);
    f(z);
    f(results);
  }
};

}  // namespace entrain::device_loops
