// The kernel table over device memory.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

// One for all devices: its functions look at the calling thread's KernelStream, without which they
// must not be called. What cannot be done is noted there: more than kMostSources contributions, or
// what the driver says.
const Kernels& CudaKernels();

}  // namespace entrain
