// Hashes of the bits of f32 arrays.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace entrain {

// The hash of an array is made of the hashes of its
// blocks of kHashBlock elements, of which the last may be shorter. So several threads can hash an
// array, or hash each block while it is in the cache.
constexpr int64_t kHashBlock = 16384;
uint64_t HashBlock(const float* values, int64_t count);  // count <= kHashBlock
// Splits the work between the threads of the calling thread (lib/kernels/kernel_threads.h).
uint64_t HashArray(const float* values, int64_t count);
// Returns a hash of `hashes`, which depends on their order. Never returns 0.
uint64_t CombineHashes(absl::Span<const uint64_t> hashes);

}  // namespace entrain
