#include "lib/kernels/array_hash.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325u;

// FNV-1a over 64-bit words. Each step is a bijection of the state, so a change of one word always
// changes the result.
uint64_t Mix(uint64_t state, uint64_t word) {
  return (state ^ word) * 0x100000001b3u;
}

// Makes every output bit depend on all input bits. Must be applied before one state is mixed into
// another.
uint64_t Spread(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

uint64_t HashBlock(const float* values, int64_t count) {
  uint64_t chains[kHashChains];
  for (uint64_t c = 0; c < kHashChains; ++c) {
    chains[c] = kBasis + c;
  }
  const int64_t whole = count / kHashStep * kHashStep;
  BestKernels().hash(chains, values, whole);
  for (int64_t i = whole; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, values + i, sizeof(word));
    chains[0] = Mix(chains[0], word);
  }
  auto hash = static_cast<uint64_t>(count);
  for (const uint64_t chain : chains) {
    hash = Mix(hash, Spread(chain));
  }
  return Spread(hash);
}

uint64_t HashArray(const float* values, int64_t count) {
  std::vector<uint64_t> blocks(static_cast<size_t>((count + kHashBlock - 1) / kHashBlock));
  ForPieces(count, kHashBlock, [&](int64_t first, int64_t length) {
    for (const int64_t end = first + length; first < end; first += kHashBlock) {
      blocks[static_cast<size_t>(first / kHashBlock)] =
          HashBlock(values + first, std::min(kHashBlock, end - first));
    }
  });
  return CombineHashes(blocks);
}

uint64_t CombineHashes(absl::Span<const uint64_t> hashes) {
  uint64_t combined = kBasis;
  for (const uint64_t hash : hashes) {
    combined = Mix(combined, hash);
  }
  combined = Spread(combined);
  return combined == 0 ? 1 : combined;
}

}  // namespace entrain
