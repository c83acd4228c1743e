// Computes a rank's contribution to a reduction if the contribution differs from the input buffer.
// A sum with a factor differs. A merging on a communicator of one rank also differs, because the
// rank must apply its weight itself. Packed merging (Merging::Packs) is not handled here.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

// Returns true if the contribution differs from the input buffer. The caller must then call
// Contribute. `size`: the number of ranks.
bool ContributionDiffers(const Call& call, int size);
// Writes the contribution of `count` elements to `dst`, which may be `src`.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

}  // namespace entrain
