#include "lib/device/registry.h"

#include "absl/strings/str_cat.h"

#if ENTRAIN_HAVE_DEVICE
#include "lib/device/cuda/cuda_devices.h"
#include "lib/device/nccl/nccl_library.h"
#endif

namespace entrain {

#if ENTRAIN_HAVE_DEVICE

absl::StatusOr<Devices*> OpenDevices() {
  return OpenCudaDevices();
}
Devices* DevicesInUse() {
  return CudaIsInUse() ? OpenCudaDevices().value_or(nullptr) : nullptr;
}
absl::StatusOr<OffloadLibrary*> OpenOffloadLibrary() {
  return OpenNccl();
}

#else

absl::StatusOr<Devices*> OpenDevices() {
  return absl::UnavailableError(kBuiltWithoutDevices);
}
Devices* DevicesInUse() {
  return nullptr;
}
absl::StatusOr<OffloadLibrary*> OpenOffloadLibrary() {
  return absl::UnavailableError(kBuiltWithoutDevices);
}

#endif

absl::StatusOr<Devices*> ProcessDevices() {
  const auto devices = OpenDevices();
  return devices.ok() ? devices
                      : absl::UnimplementedError(
                            absl::StrCat("memory 1 (of a device): ", devices.status().message()));
}

}  // namespace entrain
