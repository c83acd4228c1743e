// Computes a rank's contribution to a reduction if the contribution is not the content of the input
// buffer. This is the case for a sum with a factor. It is also the case for a merging on a
// communicator of one rank, because this rank must apply its weight itself. Packed merging
// (Merging::Packs) is not handled here.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

// Returns true if the contribution is not the content of the input buffer, so that Contribute must
// be called. `size`: the number of ranks.
bool ContributionDiffers(const Call& call, int size);
// Writes the contribution of `count` elements to `dst`, which may be `src`.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

}  // namespace entrain
