// Part of loops.h: which elements of a vector a sparsified contribution keeps
// (lib/kernels/packing.h has the rules).
#pragma once

#include "lib/device/cuda/loops.h"
#include "lib/device/cuda/loops_updates.h"
#include "lib/kernels/draws.h"

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

ENTRAIN_ANYWHERE inline int OnesOf(uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __popcll(static_cast<unsigned long long>(word));
#else
  return __builtin_popcountll(word);
#endif
}

// Words [begin, end) of a block's part, of `count` elements.
struct WordsOfBlock {
  int64_t begin, end;
  template <typename Block>
  ENTRAIN_ANYWHERE static WordsOfBlock Of(const Block& block, int64_t part, int64_t count) {
    const int64_t words = (count + 63) / 64, begin = block.index * part;
    return {begin, begin + part < words ? begin + part : words};
  }
};

template <typename Bits>
struct MarkNonzero {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const MarkArgs& args, const Block& block) {
    const WordsOfBlock words = WordsOfBlock::Of(block, args.part, args.range.count);
    SumOfBlock(block, args.results, [&](int thread) {
      int64_t found = 0;
      for (int64_t w = words.begin + thread; w < words.end; w += kThreads) {
        const int64_t rest = args.range.count - w * 64;
        const int64_t count = rest < 64 ? rest : 64;
        uint64_t word = 0;
        for (int64_t i = 0; i < count; ++i) {
          const Bits x = static_cast<const Bits*>(args.in)[w * 64 + i];
          word |= static_cast<uint64_t>(MagnitudeOf(x) != 0 ? 1 : 0) << i;
        }
        args.words[w] = word;
        found += OnesOf(word);
      }
      return static_cast<double>(found);
    });
  }
};

// Each thread has words that follow each other, and counts what those before it have.
template <typename Bits>
struct GatherMarked {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const GatherArgs& args, const Block& block) {
    const WordsOfBlock words = WordsOfBlock::Of(block, args.part, args.range.count);
    const int64_t each = (args.part + kThreads - 1) / kThreads;
    const auto first = [&](int thread) { return words.begin + thread * each; };
    const auto last = [&](int thread) {
      const int64_t end = first(thread) + each;
      return end < words.end ? end : words.end;
    };
    block.Each([&](int thread) {
      int64_t found = 0;
      for (int64_t w = first(thread); w < last(thread); ++w) {
        found += OnesOf(args.words[w]);
      }
      block.shared[thread] = static_cast<double>(found);
    });
    block.Last([&](int thread) {
      auto at = static_cast<int64_t>(args.starts[block.index]);
      for (int t = 0; t < thread; ++t) {
        at += static_cast<int64_t>(block.shared[t]);
      }
      for (int64_t w = first(thread); w < last(thread); ++w) {
        const uint64_t word = args.words[w];
        for (int i = 0; i < 64; ++i) {
          if ((word >> i & 1) != 0) {
            static_cast<Bits*>(args.out)[at++] = static_cast<const Bits*>(args.in)[w * 64 + i];
          }
        }
      }
    });
  }
};

}  // namespace entrain::device_loops
