// Where nvcc was not found, or not wanted.
#include "absl/status/status.h"

#include "lib/device/cuda/cuda_devices.h"

namespace entrain {

absl::StatusOr<Devices*> OpenCudaDevices() {
  return absl::UnavailableError("this library was built without CUDA");
}

}  // namespace entrain
