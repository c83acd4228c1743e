// Counts what this process has allocated: all by new, and what the library has of malloc, calloc
// and aligned_alloc; not what the C library and other libraries take for themselves. Not under
// sanitizers, which count otherwise.
#pragma once

#include <cstdint>

namespace entrain {

// Bytes that are there now, with what the allocator adds to round them up.
int64_t AllocatedBytes();
// The most that were there at a time since ForgetMost.
int64_t MostAllocatedBytes();
void ForgetMost();

}  // namespace entrain
