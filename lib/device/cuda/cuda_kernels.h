// The kernel table over device memory.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

// Returns the one table for all devices. Its functions use the calling thread's KernelStream and
// must not be called without one. The functions report errors of the driver by KernelStream::Note.
// Device::kernels says which functions the table has.
const Kernels& CudaKernels();

}  // namespace entrain
