// Counts the memory that this process has allocated: all memory of new, and the library's memory of
// malloc, calloc and aligned_alloc. The C library's and other libraries' own memory is not counted.
// Not for sanitizers, which count in another way.
#pragma once

#include <cstdint>

namespace entrain {

// Returns the bytes that are allocated now, including the allocator's rounding.
int64_t AllocatedBytes();
// Returns the largest number of bytes that were allocated at a time since ForgetMost.
int64_t MostAllocatedBytes();
void ForgetMost();

}  // namespace entrain
