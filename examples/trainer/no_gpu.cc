// In builds without nvcc, --device cuda throws Error with the reason.
#include "examples/trainer/device.h"
#include "examples/trainer/error.h"

namespace trainer {

std::unique_ptr<Device> OpenGpu(int, int) {
  throw Error(
      "--device cuda: this program was built without CUDA; build it where nvcc is (of CUDA 12.8 or "
      "later), or set --device cpu");
}

}  // namespace trainer
