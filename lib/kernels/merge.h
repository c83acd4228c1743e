// Combines the contributions of all ranks as lib/base/merging.h defines.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "lib/base/dtype.h"
#include "lib/base/merging.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// Returns true if any of the first `ranks` ranks has a weight other than 0. Otherwise the result of
// a merge is all zeros.
bool AnyCounts(const Merging& merging, size_t ranks);

// dst = the merge of `sources`. There is one source per rank, in rank order, each with `count`
// elements of a float type. dst may be equal to any source. A source whose rank has weight 0 is not
// read. If all weights are 0, dst must be in host memory, because this function clears it with
// memset.
void Merge(const Kernels& kernels, const Merging& merging, DType dtype, void* dst,
           absl::Span<const void* const> sources, int64_t count);

}  // namespace entrain
