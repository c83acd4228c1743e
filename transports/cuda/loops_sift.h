// Part of loops.h: which elements of a vector a sparsified contribution keeps
// (lib/kernels/packing.h has the rules).
#pragma once

#include "lib/kernels/draws.h"
#include "transports/cuda/loops.h"
#include "transports/cuda/loops_updates.h"

namespace entrain::device_loops {

template <typename Count>
ENTRAIN_ANYWHERE void AddShared(Count* to, Count count) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
#else
  *to += count;
#endif
}

template <typename Bits>
ENTRAIN_ANYWHERE Bits MagnitudeOf(Bits x) {
  return static_cast<Bits>(x & static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1));
}

template <typename Bits>
struct CountDigits {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const DigitsArgs& args, const Block& block) {
    static_assert(kThreads == 256 && sizeof(double) == sizeof(uint64_t));
    auto* const counts = reinterpret_cast<uint64_t*>(block.shared);
    const auto known = static_cast<Bits>(args.known), threshold = static_cast<Bits>(args.threshold);
    block.Each([&](int thread) { counts[thread] = 0; });
    block.Each([&](int thread) {
      Share<16 / sizeof(Bits)>(
          ThreadAt(block, thread), ThreadsOf(block), args.range, [&](auto access, int64_t i) {
            using At = decltype(access);
            const auto x = At::template Load<Bits>(args.in, i);
            ENTRAIN_UNROLL
            for (int e = 0; e < At::kWidth; ++e) {
              const Bits magnitude = MagnitudeOf(x.at[e]);
              if (static_cast<Bits>(magnitude & known) == threshold) {
                AddShared(&counts[(magnitude >> args.low) & 0xff], uint64_t{1});
              }
            }
          });
    });
    block.Last([&](int thread) {
      if (counts[thread] != 0) {
        AddShared(&args.counts[thread], counts[thread]);
      }
    });
  }
};

template <typename Bits>
struct CountTies {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const TiesArgs& args, const Block& block) {
    const int64_t begin = block.index * args.part;
    const int64_t rest = args.range.count - begin;
    const int64_t count = rest < args.part ? rest : args.part;
    SumOfBlock(block, args.results, [&](int thread) {
      int64_t ties = 0;
      for (int64_t i = thread; i < count; i += kThreads) {
        const Bits x = static_cast<const Bits*>(args.in)[begin + i];
        ties += MagnitudeOf(x) == static_cast<Bits>(args.threshold) ? 1 : 0;
      }
      return static_cast<double>(ties);
    });
  }
};

// keeps(x, i): whether element i, x, is kept.
template <typename Bits, typename Block, typename Keeps>
ENTRAIN_ANYWHERE void Keep(const KeepArgs& args, const Block& block, Keeps keeps) {
  Elements<16 / sizeof(Bits)>(block, args.range, [&](auto access, int64_t i) {
    using At = decltype(access);
    auto x = At::template Load<Bits>(args.in, i);
    ENTRAIN_UNROLL
    for (int e = 0; e < At::kWidth; ++e) {
      x.at[e] = keeps(x.at[e], i + e) ? x.at[e] : Bits{0};
    }
    At::template Store<Bits>(args.out, i, x);
  });
}

template <typename Bits>
struct KeepLargest {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const KeepArgs& args, const Block& block) {
    const auto threshold = static_cast<Bits>(args.threshold);
    Keep<Bits>(args, block, [&](Bits x, int64_t i) {
      const Bits magnitude = MagnitudeOf(x);
      return magnitude > threshold || (magnitude == threshold && i < args.cut);
    });
  }
};

template <typename Bits>
struct KeepRandom {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const KeepArgs& args, const Block& block) {
    Keep<Bits>(args, block, [&](Bits, int64_t i) {
      return DrawAt(args.key, static_cast<uint64_t>(args.first + i)) < args.threshold;
    });
  }
};

// Sums of whole numbers, which have the same result in any order.
struct HashWords {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const HashArgs& args, const Block& block) {
    auto* const sums = reinterpret_cast<uint64_t*>(block.shared);
    block.Each([&](int thread) {
      uint64_t sum = 0;
      for (int64_t i = ThreadAt(block, thread); i < args.range.count; i += ThreadsOf(block)) {
        sum += Scramble(((static_cast<uint64_t>(i) + 1) * kDrawStep) ^ args.words[i]);
      }
      sums[thread] = sum;
    });
    for (int stride = kThreads / 2; stride > 0; stride /= 2) {
      block.Each([&](int thread) {
        if (thread < stride) {
          sums[thread] += sums[thread + stride];
        }
      });
    }
    block.Last([&](int thread) {
      if (thread == 0) {
        args.results[block.index] = sums[0];
      }
    });
  }
};

}  // namespace entrain::device_loops
