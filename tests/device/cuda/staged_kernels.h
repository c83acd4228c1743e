// The device's kernel table for arrays of the host. Each call copies them to the device, with the
// same alignment, and back. So the tests of lib/kernels test the device as well.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

// Returns the table of the device of on_device.h. The test fails if a kernel writes outside its
// arrays, or on an error of the stream.
const Kernels& StagedKernels();

}  // namespace entrain
