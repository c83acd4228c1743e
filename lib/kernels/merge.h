// Contributions of all ranks to one result, as lib/base/merging.h says.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "lib/base/dtype.h"
#include "lib/base/merging.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// Whether any of the first `ranks` has a weight. Where none has, the result is zeros.
bool AnyCounts(const Merging& merging, size_t ranks);

// dst = the merged `sources`, one for each rank in rank order, `count` elements each of a float type. dst may be any of
// them. What a rank of weight 0 has is not read. Where none counts, dst is memory of the host: a device's is the caller's to clear.
void Merge(const Kernels& kernels, const Merging& merging, DType dtype, void* dst,
           absl::Span<const void* const> sources, int64_t count);

}  // namespace entrain
