// The arguments of each kernel: plain structs, which both nvcc and the host's compiler compile.
#pragma once

#include <cstdint>

namespace entrain::device_loops {

constexpr int kThreads = 256;     // threads of a block
constexpr int kMostBlocks = 512;  // for a kernel with one result per block: all blocks run at once
constexpr int kPack = 4;          // elements of a pack: 16 bytes

// The elements from `head` on are processed in packs, which are aligned in all arrays. The elements
// before `head`, and those behind the last whole pack, are processed one by one.
struct Range {
  int64_t count, head;
};

// ForEachPointer calls f for each pointer among the arguments, so that a test can check and
// translate the pointers.

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
