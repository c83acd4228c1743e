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

#include "lib/device/cuda/kernel_args.h"

#if defined(__CUDACC__)
#define ENTRAIN_ANYWHERE __host__ __device__
#define ENTRAIN_UNROLL _Pragma("unroll")
#define ENTRAIN_UNROLL_4 _Pragma("unroll 4")
#define ENTRAIN_NO_UNROLL _Pragma("unroll 1")
#else
#define ENTRAIN_ANYWHERE
#define ENTRAIN_UNROLL
#define ENTRAIN_UNROLL_4
#define ENTRAIN_NO_UNROLL
#endif

namespace entrain::device_loops {

// ---- Access: kWidth elements of an array at once

template <int kWidth>
struct alignas(kWidth * sizeof(float)) Pack {
  float at[kWidth];
};

// Load from and store to aligned memory, in one access.
ENTRAIN_ANYWHERE inline Pack<kPack> LoadAligned(const float* from) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Pack<kPack>*>(from);
#else
  Pack<kPack> pack;
  __builtin_memcpy(&pack, from, sizeof(pack));
  return pack;
#endif
}
ENTRAIN_ANYWHERE inline void StoreAligned(float* to, const Pack<kPack>& pack) {
#if defined(__CUDACC__)
  // An assignment would store element after element.
  asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "f"(pack.at[0]), "f"(pack.at[1]), "f"(pack.at[2]), "f"(pack.at[3])
               : "memory");
#else
  __builtin_memcpy(to, &pack, sizeof(pack));
#endif
}

template <int kElements, bool kAligned>
struct Access {
  static constexpr int kWidth = kElements;
  ENTRAIN_ANYWHERE static Pack<kWidth> Load(const float* from, int64_t i) {
    Pack<kWidth> pack;
    if constexpr (kAligned) {
      pack = LoadAligned(from + i);
    } else {
      ENTRAIN_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        pack.at[e] = from[i + e];
      }
    }
    return pack;
  }
  ENTRAIN_ANYWHERE static void Store(float* to, int64_t i, const Pack<kWidth>& pack) {
    if constexpr (kAligned) {
      StoreAligned(to + i, pack);
    } else {
      ENTRAIN_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        to[i + e] = pack.at[e];
      }
    }
  }
};

// Processes one thread's share of a range: calls body(access, i) for each pack and each single
// element.
template <typename Body>
ENTRAIN_ANYWHERE void Share(int64_t thread, int64_t threads, const Range& range, Body body) {
  const int64_t packs = (range.count - range.head) / kPack;
  const int64_t tail = range.head + packs * kPack;
  for (int64_t i = thread; i < packs; i += threads) {
    body(Access<kPack, true>(), range.head + i * kPack);
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

template <typename Block, typename Body>
ENTRAIN_ANYWHERE void Elements(const Block& block, const Range& range, Body body) {
  block.Last([&](int thread) { Share(ThreadAt(block, thread), ThreadsOf(block), range, body); });
}

}  // namespace entrain::device_loops

#include "lib/device/cuda/loops_updates.h"
