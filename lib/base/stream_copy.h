// A copy for bytes that nothing on this machine reads soon.
#pragma once

#include <cstddef>

namespace entrain {

// Copies as memcpy does, but past the caches where the processor can: it does not fetch the
// destination's lines first, and other cached data stays. Slower than memcpy if the destination
// would have been cached, up to twice as fast if not. Other threads see the result as after memcpy.
// Any thread.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace entrain
