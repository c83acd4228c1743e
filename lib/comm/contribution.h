// Computes the contribution of a rank to a reduction where it is not the input buffer itself. This
// happens in two cases: a sum with a factor, and a merging on a communicator of one rank, which
// multiplies the input by the rank's weight. Packed merging (Merging::Packs) is not handled here.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

// Returns true if the contribution differs from the input buffer. The caller must then call
// Contribute. `size`: the number of ranks.
bool ContributionDiffers(const Call& call, int size);
// Returns true if the call's contributions are sent packed (packed_call.h).
bool IsPacked(const Call& call);
// Writes the contribution of `count` elements to `dst`, which may be `src`.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

}  // namespace entrain
