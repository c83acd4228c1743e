// The device's kernel table for arrays of the host: each call copies them to the device, aligned as
// they are, and back. So the tests of lib/kernels test the device too.
#pragma once

#include "lib/kernels/kernels.h"

namespace entrain {

// Of the device of on_device.h. A kernel that writes around its arrays, or an error at the stream,
// fails the test.
const Kernels& StagedKernels();

}  // namespace entrain
