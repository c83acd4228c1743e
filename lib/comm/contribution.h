// What a rank contributes to a reduction where that is not what its buffer has: a factor, or a single rank's weight, comes
// first.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

bool ContributionDiffers(const Call& call, int size);
// dst = the contribution of `count` elements; dst may be src.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

}  // namespace entrain
