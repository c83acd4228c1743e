// Merges the contributions of all ranks as lib/base/merging.h defines.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "lib/base/dtype.h"
#include "lib/base/merging.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// Returns true if any of the first `ranks` ranks has a weight other than 0. If no rank has such a
// weight, the result is zeros.
bool AnyCounts(const Merging& merging, size_t ranks);

// Computes dst = the merged `sources`: one source per rank, in rank order, of `count` elements of a
// float type. dst may be any source. The data of a rank of weight 0 is not read. If all weights are
// 0, dst must be host memory, because this function cannot clear device memory.
void Merge(const Kernels& kernels, const Merging& merging, DType dtype, void* dst,
           absl::Span<const void* const> sources, int64_t count);

}  // namespace entrain
