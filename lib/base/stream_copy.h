// A copy for bytes that nothing on this machine reads soon.
#pragma once

#include <cstddef>

namespace entrain {

// As memcpy, but where the processor can do that the destination is written past the caches: its lines
// are not fetched first, and what was cached stays. Slower than memcpy where the destination would
// have been cached, up to twice as quick where it would not. What is written is visible to other
// threads as after memcpy. Any thread.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace entrain
