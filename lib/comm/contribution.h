// The contribution of a rank to a reduction, if it is not the content of its buffer: the call has a
// factor, or a weight that a single rank must apply itself.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

bool ContributionDiffers(const Call& call, int size);
// Writes the contribution of `count` elements to `dst`, which may be `src`.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

}  // namespace entrain
