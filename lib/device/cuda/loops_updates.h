// Part of loops.h: arithmetic on f32 arrays, sums, and the update rules of optimizers.
#pragma once

#include "lib/device/cuda/loops.h"

namespace entrain::device_loops {

ENTRAIN_ANYWHERE inline float SquareRoot(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// out = u * a
struct Scale {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const FloatsArgs& args, const Block& block) {
    Elements(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto x = At::Load(args.a, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        x.at[e] = x.at[e] * args.u;
      }
      At::Store(args.out, i, x);
    });
  }
};

// second = a; out = a + u * b, or with flag: out = a + u * (a * a * b)
struct Ascend {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const FloatsArgs& args, const Block& block) {
    Elements(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto p = At::Load(args.a, i);
      const auto g = At::Load(args.b, i);
      At::Store(args.second, i, p);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        const float x = p.at[e];
        p.at[e] = x + args.u * (args.flag ? x * x * g.at[e] : g.at[e]);
      }
      At::Store(args.out, i, p);
    });
  }
};

// out = u * a + v * (x * c - w * b)
struct AddSharpness {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const FloatsArgs& args, const Block& block) {
    Elements(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto base = At::Load(args.a, i);
      const auto g = At::Load(args.b, i);
      const auto g2 = At::Load(args.c, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        base.at[e] = args.u * base.at[e] + args.v * (args.x * g2.at[e] - args.w * g.at[e]);
      }
      At::Store(args.out, i, base);
    });
  }
};

// ---- Sums. Each thread adds its elements. Then the block adds the sums of its threads in a tree.
// The elements of a thread and their order depend only on the number of elements.

template <typename Block, typename OfThread>
ENTRAIN_ANYWHERE void SumOfBlock(const Block& block, double* results, OfThread of_thread) {
  double* const sums = block.shared;
  block.Each([&](int thread) { sums[thread] = of_thread(thread); });
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    block.Each([&](int thread) {
      if (thread < stride) {
        sums[thread] += sums[thread + stride];
      }
    });
  }
  block.Last([&](int thread) {
    if (thread == 0 && results != nullptr) {
      results[block.index] = sums[0];
    }
  });
}

// Calls add(access, i, &sum), which adds the terms of the elements of a pack. From the first
// element on, the threads take packs in turn. A pack need not be aligned. The thread whose turn is
// next takes the remaining elements.
template <typename Block, typename Add>
ENTRAIN_ANYWHERE void SumOfTerms(const SumArgs& args, const Block& block, Add add) {
  SumOfBlock(block, args.results, [&](int thread) {
    const int64_t threads = ThreadsOf(block), first = ThreadAt(block, thread);
    const int64_t packs = args.range.count / kPack;
    double sum = 0;
    if (args.range.head == 0) {
      ENTRAIN_UNROLL_4
      for (int64_t pack = first; pack < packs; pack += threads) {
        add(Access<kPack, true>(), pack * kPack, &sum);
      }
    } else {
      ENTRAIN_UNROLL_4
      for (int64_t pack = first; pack < packs; pack += threads) {
        add(Access<kPack, false>(), pack * kPack, &sum);
      }
    }
    if (packs % threads == first) {
      for (int64_t i = packs * kPack; i < args.range.count; ++i) {
        add(Access<1, false>(), i, &sum);
      }
    }
    return sum;
  });
}

struct SumOfSquares {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const SumArgs& args, const Block& block) {
    SumOfTerms(args, block, [&](auto access, int64_t i, double* sum) {
      using At = decltype(access);
      const auto x = At::Load(args.x, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        const double term = x.at[e];
        *sum += term * term;
      }
    });
  }
};

struct SumOfSquaredProducts {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const SumArgs& args, const Block& block) {
    SumOfTerms(args, block, [&](auto access, int64_t i, double* sum) {
      using At = decltype(access);
      const auto x = At::Load(args.x, i);
      const auto y = At::Load(args.y, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        const double term = double{x.at[e]} * double{y.at[e]};
        *sum += term * term;
      }
    });
  }
};

// ---- Optimizers: lib/kernels/kernels_updates.inc has the rules

struct SgdStep {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const SgdStepArgs& args, const Block& block) {
    Elements(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto p = At::Load(args.p, i);
      const auto g = At::Load(args.g, i);
      Pack<At::kWidth> b = {};
      if (args.momentum && !args.first_step) {
        b = At::Load(args.b, i);
      }
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        const float grad = g.at[e] + args.decay * p.at[e];
        b.at[e] = args.first_step ? grad : args.mu * b.at[e] + grad;
        const float step = !args.momentum  ? grad
                           : args.nesterov ? grad + args.mu * b.at[e]
                                           : b.at[e];
        p.at[e] = p.at[e] - args.lr * step;
      }
      if (args.momentum && args.store) {
        At::Store(args.b, i, b);
      }
      At::Store(args.out, i, p);
    });
  }
};

struct AdamwStep {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const AdamwStepArgs& args, const Block& block) {
    Elements(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto p = At::Load(args.p, i);
      const auto g = At::Load(args.g, i);
      auto m = At::Load(args.m, i);
      auto v = At::Load(args.v, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        const float grad = g.at[e];
        m.at[e] = args.beta1 * m.at[e] + args.rest1 * grad;
        v.at[e] = args.beta2 * v.at[e] + args.rest2 * (grad * grad);
        const float denominator = SquareRoot(v.at[e]) / args.root2 + args.eps;
        p.at[e] = p.at[e] * args.keep - args.rate * (m.at[e] / denominator);
      }
      if (args.store) {
        At::Store(args.m, i, m);
        At::Store(args.v, i, v);
      }
      At::Store(args.out, i, p);
    });
  }
};

// Numbers in parentheses are the steps of AGD's rule in lib/optim/rules.h.
struct AgdStep {
  // Processes elements i to i + kWidth - 1. Returns the number of adaptive elements among them.
  template <typename At>
  ENTRAIN_ANYWHERE static int Step(const AgdStepArgs& args, At, int64_t i) {
    const bool amsgrad = args.largest != nullptr, win = args.z != nullptr;
    auto p = At::Load(args.p, i);
    const auto g = At::Load(args.g, i);
    auto m = At::Load(args.m, i);
    auto b = At::Load(args.b, i);
    Pack<At::kWidth> largest = {}, z = {};
    if (amsgrad) {
      largest = At::Load(args.largest, i);
    }
    if (win) {
      z = args.first_step ? p : At::Load(args.z, i);
    }
    int adaptive = 0;
    ENTRAIN_UNROLL
    for (int e = 0; e < At::kWidth; ++e) {
      const float p_before = p.at[e], m_before = m.at[e];
      const float grad = g.at[e] + args.coupled_lambda * p_before;  // (1) coupled
      m.at[e] = args.beta1 * m_before + args.rest1 * grad;          // (2)
      const float s = args.rest1_over_c1 * (grad - args.inverse_c1_before * m_before);  // (4)
      b.at[e] = args.beta2 * b.at[e] + args.rest2 * (s * s);                            // (5)
      if (amsgrad) {                                                                    // (6)
        largest.at[e] = largest.at[e] > b.at[e] ? largest.at[e] : b.at[e];
      }
      const float root_v = SquareRoot(amsgrad ? largest.at[e] : b.at[e]);
      const float d = root_v > args.delta_root_c2 ? root_v : args.delta_root_c2;  // (7)
      float u = m.at[e] / d;                                                      // (8)
      u = u < -args.clip ? -args.clip : u;
      u = u > args.clip ? args.clip : u;
      p.at[e] = p_before * args.p_factor - args.a * u;  // (1), (9)
      if (win) {
        z.at[e] = (z.at[e] - args.a * u) * args.inverse_1_a_lambda;  // (10)
        p.at[e] = p_before + args.twice_tau * (z.at[e] - p_before - args.a * u -
                                               args.a_lambda * p_before);  // (11)
      }
      adaptive += root_v >= args.delta_root_c2 ? 1 : 0;
    }
    if (args.store) {
      At::Store(args.m, i, m);
      At::Store(args.b, i, b);
      if (amsgrad) {
        At::Store(args.largest, i, largest);
      }
      if (win) {
        At::Store(args.z, i, z);
      }
    }
    At::Store(args.out, i, p);
    return adaptive;
  }
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const AgdStepArgs& args, const Block& block) {
    SumOfBlock(block, args.results, [&](int thread) {
      int64_t adaptive = 0;
      Share(ThreadAt(block, thread), ThreadsOf(block), args.range,
            [&](auto access, int64_t i) { adaptive += Step(args, access, i); });
      return static_cast<double>(adaptive);
    });
  }
};

}  // namespace entrain::device_loops
