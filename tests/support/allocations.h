// Counts the memory that this process has allocated: all memory from new, and the memory that the
// library gets from malloc, calloc, aligned_alloc and posix_memalign. Memory of the C library and of other
// libraries is not counted. Does not work with sanitizers.
#pragma once

#include <cstdint>

namespace entrain {

// Returns the bytes that are allocated now, including the allocator's rounding.
int64_t AllocatedBytes();
// Returns the largest number of bytes that were allocated at the same time since ForgetMost.
int64_t MostAllocatedBytes();
void ForgetMost();

}  // namespace entrain
