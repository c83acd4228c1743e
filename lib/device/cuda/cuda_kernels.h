// The kernel table over device memory.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

// Returns the one table for all devices. Its functions use the calling thread's KernelStream and
// must not be called without one. The functions report errors by KernelStream::Note: more than
// kMostSources arrays, or an error of the driver.
const Kernels& CudaKernels();

}  // namespace entrain
