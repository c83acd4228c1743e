// Part of loops.h: hashes (Device::Hash).
#pragma once

#include "lib/device/cuda/loops.h"
#include "lib/kernels/draws.h"

namespace entrain::device_loops {

// Sums integers, so the result does not depend on the order.
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
