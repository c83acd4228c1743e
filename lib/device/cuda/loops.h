// The loops of the kernels, for one thread of a grid. nvcc compiles them into kernels (kernels.cu).
// For tests, the host's compiler compiles the loops into functions. Each of these functions runs
// all threads of a grid one after the other. For each element the loops do the same operations as
// the loops of lib/kernels, in the same order. So the results are equal bit for bit. This needs
// compilation without contraction of operations, without flushing of subnormal numbers to zero, and
// with correctly rounded division and square root.
//
// A loop is a struct with Run(args, block). `block` is the thread's view of its block:
//   index, blocks   the block's number, and the number of blocks in the grid
//   Each(f)         calls f(thread) for the threads of the block, thread in [0, kThreads); returns
//                   when all threads have finished
//   Last(f)         does the same without the wait; nothing may follow it
//   shared                 kThreads doubles of the block
#pragma once

#include <cstdint>
#include <type_traits>

#include "lib/device/cuda/kernel_args.h"

namespace entrain::device_loops {

#include "lib/kernels/kernels_elements.inc"

#if defined(__CUDACC__)
#define ENTRAIN_UNROLL _Pragma("unroll")
#define ENTRAIN_UNROLL_4 _Pragma("unroll 4")
#define ENTRAIN_NO_UNROLL _Pragma("unroll 1")
#else
#define ENTRAIN_UNROLL
#define ENTRAIN_UNROLL_4
#define ENTRAIN_NO_UNROLL
#endif

// ---- Access: kWidth elements of an array at once

constexpr int PackAlignment(int64_t bytes) {
  return bytes >= 16 ? 16 : static_cast<int>(bytes);
}
template <typename T, int kWidth>
struct alignas(PackAlignment(int64_t{sizeof(T)} * kWidth)) Pack {
  T at[kWidth];
};

// Load from and store to aligned memory, in as few accesses as possible.
template <typename P>
ENTRAIN_ANYWHERE P LoadAligned(const void* from) {
#if defined(__CUDACC__)
  return *static_cast<const P*>(from);
#else
  P pack;
  __builtin_memcpy(&pack, from, sizeof(pack));
  return pack;
#endif
}
template <typename P>
ENTRAIN_ANYWHERE void StoreAligned(void* to, const P& pack) {
#if defined(__CUDACC__)
  struct Words {
    uint32_t at[sizeof(P) / 4];
  };
  if constexpr (sizeof(P) >= 16) {  // an assignment would store element after element
    const auto words = __builtin_bit_cast(Words, pack);
    ENTRAIN_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(P) / 4); i += 4) {
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};"
                   :
                   : "l"(static_cast<uint32_t*>(to) + i), "r"(words.at[i]), "r"(words.at[i + 1]),
                     "r"(words.at[i + 2]), "r"(words.at[i + 3])
                   : "memory");
    }
  } else if constexpr (sizeof(P) == 8) {
    const auto words = __builtin_bit_cast(Words, pack);
    asm volatile("st.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(to), "r"(words.at[0]), "r"(words.at[1])
                 : "memory");
  } else if constexpr (sizeof(P) == 4) {
    *static_cast<uint32_t*>(to) = __builtin_bit_cast(uint32_t, pack);
  } else {
    *static_cast<P*>(to) = pack;
  }
#else
  __builtin_memcpy(to, &pack, sizeof(pack));
#endif
}

template <int kElements, bool kAligned>
struct Access {
  static constexpr int kWidth = kElements;
  template <typename T>
  ENTRAIN_ANYWHERE static Pack<T, kWidth> Load(const void* from, int64_t i) {
    const T* const source = static_cast<const T*>(from) + i;
    Pack<T, kWidth> pack;
    if constexpr (kAligned) {
      pack = LoadAligned<Pack<T, kWidth>>(source);
    } else {
      ENTRAIN_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        pack.at[e] = source[e];
      }
    }
    return pack;
  }
  template <typename T>
  ENTRAIN_ANYWHERE static void Store(void* to, int64_t i, const Pack<T, kWidth>& pack) {
    T* const target = static_cast<T*>(to) + i;
    if constexpr (kAligned) {
      StoreAligned(target, pack);
    } else {
      ENTRAIN_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        target[e] = pack.at[e];
      }
    }
  }
  // LoadWide and StoreNarrow convert elements to and from the type in which they are combined.
  template <typename T>
  ENTRAIN_ANYWHERE static Pack<typename Element<T>::Wide, kWidth> LoadWide(const void* from,
                                                                           int64_t i) {
    const Pack<T, kWidth> in = Load<T>(from, i);
    Pack<typename Element<T>::Wide, kWidth> out;
    ENTRAIN_UNROLL
    for (int e = 0; e < kWidth; ++e) {
      out.at[e] = Element<T>::Widen(in.at[e]);
    }
    return out;
  }
  template <typename T>
  ENTRAIN_ANYWHERE static void StoreNarrow(void* to, int64_t i,
                                           const Pack<typename Element<T>::Wide, kWidth>& in) {
    Pack<T, kWidth> out;
    ENTRAIN_UNROLL
    for (int e = 0; e < kWidth; ++e) {
      out.at[e] = Element<T>::Narrow(in.at[e]);
    }
    Store<T>(to, i, out);
  }
};

// Processes one thread's share of a range: calls body(access, i) for each pack and each single
// element.
template <int kWidth, typename Body>
ENTRAIN_ANYWHERE void Share(int64_t thread, int64_t threads, const Range& range, Body body) {
  const int64_t packs = (range.count - range.head) / kWidth;
  const int64_t tail = range.head + packs * kWidth;
  for (int64_t i = thread; i < packs; i += threads) {
    body(Access<kWidth, true>(), range.head + i * kWidth);
  }
  ENTRAIN_NO_UNROLL
  for (int64_t i = thread; i < range.head; i += threads) {
    body(Access<1, false>(), i);
  }
  ENTRAIN_NO_UNROLL
  for (int64_t i = tail + thread; i < range.count; i += threads) {
    body(Access<1, false>(), i);
  }
}

template <typename Block>
ENTRAIN_ANYWHERE int64_t ThreadsOf(const Block& block) {
  return int64_t{block.blocks} * kThreads;
}
template <typename Block>
ENTRAIN_ANYWHERE int64_t ThreadAt(const Block& block, int thread) {
  return int64_t{block.index} * kThreads + thread;
}

template <int kWidth, typename Block, typename Body>
ENTRAIN_ANYWHERE void Elements(const Block& block, const Range& range, Body body) {
  block.Last(
      [&](int thread) { Share<kWidth>(ThreadAt(block, thread), ThreadsOf(block), range, body); });
}

// ---- Converting. A device maps every NaN to one NaN. A CPU makes a NaN quiet and keeps the bits
// of its payload that fit. The functions below treat a NaN as a CPU does.

ENTRAIN_ANYWHERE inline float ToFloat(double x) {
  const auto bits = __builtin_bit_cast(uint64_t, x);
  const uint32_t nan = static_cast<uint32_t>(bits >> 32 & 0x80000000u) | 0x7fc00000u |
                       static_cast<uint32_t>(bits >> 29 & 0x3fffffu);
  return x == x ? static_cast<float>(x) : FloatOf(nan);
}

ENTRAIN_ANYWHERE inline double ToDouble(float x) {
  const uint64_t bits = BitsOf(x);
  const uint64_t nan =
      (bits & 0x80000000u) << 32 | uint64_t{0x7ff8} << 48 | (bits & 0x3fffffu) << 29;
  return x == x ? static_cast<double>(x) : __builtin_bit_cast(double, nan);
}

// Rounds toward zero, and sets the last bit if anything was cut off. Rounding the result to a
// narrower float then gives the same value as rounding the f64 directly.
ENTRAIN_ANYWHERE inline float ToOddFloat(double x) {
  const float nearest = ToFloat(x);
  const double back = nearest;
  const double size = x < 0 ? -x : x, back_size = back < 0 ? -back : back;
  const uint32_t away = back_size > size ? 1 : 0;
  const uint32_t inexact = ((back < x) | (back > x)) ? 1 : 0;
  return FloatOf((BitsOf(nearest) - away) | inexact);
}

template <typename To, typename From>
ENTRAIN_ANYWHERE To Convert(From x) {
  if constexpr (std::is_same_v<From, double>) {
    return std::is_same_v<To, float> ? Element<To>::Narrow(ToFloat(x))
                                     : Element<To>::Narrow(ToOddFloat(x));
  } else if constexpr (std::is_same_v<To, double>) {
    return ToDouble(Element<From>::Widen(x));
  } else {
    return Element<To>::Narrow(Element<From>::Widen(x));
  }
}

template <typename From>
struct CastFrom {
  template <typename To, typename At>
  ENTRAIN_ANYWHERE static void To_(const CastArgs& args, At, int64_t i) {
    if constexpr (!std::is_same_v<To, From>) {
      const auto in = At::template Load<From>(args.in, i);
      Pack<To, At::kWidth> out;
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        out.at[e] = Convert<To>(in.at[e]);
      }
      At::template Store<To>(args.out, i, out);
    }
  }
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const CastArgs& args, const Block& block) {
    Elements<4>(block, args.range, [&](auto access, int64_t i) {
      switch (args.to) {
        case FloatType::kF32:
          return To_<float>(args, access, i);
        case FloatType::kF64:
          return To_<double>(args, access, i);
        case FloatType::kBF16:
          return To_<BF16>(args, access, i);
        case FloatType::kF16:
          return To_<F16>(args, access, i);
        case FloatType::kF8E4M3:
          return To_<E4M3>(args, access, i);
        case FloatType::kF8E5M2:
          return To_<E5M2>(args, access, i);
      }
    });
  }
};

template <typename T>
struct Accumulate {
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const AccumulateArgs& args, const Block& block) {
    Elements<4>(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto acc = At::template Load<float>(args.acc, i);
      const auto x = At::template LoadWide<T>(args.in, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        acc.at[e] = acc.at[e] + static_cast<float>(x.at[e]);
      }
      At::template Store<float>(args.acc, i, acc);
    });
  }
};

// ---- Scaling and weighing

template <typename T>
struct Scale {
  using Wide = typename Element<T>::Wide;
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const ScaleArgs& args, const Block& block) {
    const Wide factor =
        std::is_integral_v<T> ? static_cast<Wide>(args.whole) : static_cast<Wide>(args.factor);
    Elements<16 / sizeof(T)>(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto x = At::template LoadWide<T>(args.in, i);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        x.at[e] = Product::Apply(x.at[e], factor);
      }
      At::template StoreNarrow<T>(args.out, i, x);
    });
  }
};

template <typename T>
struct Weigh {
  using Wide = typename Element<T>::Wide;
  template <typename Block>
  ENTRAIN_ANYWHERE static void Run(const WeighArgs& args, const Block& block) {
    Elements<16 / sizeof(T)>(block, args.range, [&](auto access, int64_t i) {
      using At = decltype(access);
      auto acc = At::template LoadWide<T>(args.srcs[0], i);
      const auto first = static_cast<Wide>(args.weights[0]);
      ENTRAIN_UNROLL
      for (int e = 0; e < At::kWidth; ++e) {
        acc.at[e] = acc.at[e] * first;
      }
      for (int j = 1; j < args.n; ++j) {
        const auto x = At::template LoadWide<T>(args.srcs[j], i);
        const auto weight = static_cast<Wide>(args.weights[j]);
        ENTRAIN_UNROLL
        for (int e = 0; e < At::kWidth; ++e) {
          acc.at[e] = acc.at[e] + x.at[e] * weight;
        }
      }
      At::template StoreNarrow<T>(args.out, i, acc);
    });
  }
};

}  // namespace entrain::device_loops

#include "lib/device/cuda/loops_updates.h"
