#include "lib/device/cuda/driver.h"

#include <string>

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

#include "lib/base/config.h"

namespace entrain {
namespace {

std::string NameOfLibrary() {
  return GetEnv("ENTRAIN_CUDA_LIBRARY").value_or("libcuda.so.1");
}

absl::StatusOr<CudaDriver> Find() {
  const std::string name = NameOfLibrary();
  // Never closed, because the driver has threads and exit handlers of its own.
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("no CUDA driver: ", dlerror()));
  }
  CudaDriver driver;
#define ENTRAIN_CUDA_FIND(function)                                                         \
  driver.function = reinterpret_cast<decltype(driver.function)>(dlsym(library, #function)); \
  if (driver.function == nullptr) {                                                         \
    return absl::UnavailableError(                                                          \
        absl::StrCat("the CUDA driver ", name, " is too old: it has no ", #function));      \
  }
  ENTRAIN_CUDA_DRIVER(ENTRAIN_CUDA_FIND)
#undef ENTRAIN_CUDA_FIND
  return driver;
}

absl::StatusOr<CudaDriver> FindAndInitialise() {
  absl::StatusOr<CudaDriver> driver = Find();
  if (!driver.ok()) {
    return driver;
  }
  const absl::Status ready = ENTRAIN_CUDA(*driver, cuInit, 0);
  if (!ready.ok()) {  // CUDA_ERROR_NO_DEVICE among others
    return absl::UnavailableError(ready.message());
  }
  return driver;
}

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::StatusCode::kInvalidArgument;
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaDriver::Check(CUresult result, absl::string_view function) const {
  if (result == CUDA_SUCCESS) {
    return absl::OkStatus();
  }
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return absl::InternalError(absl::StrCat(function, ": unknown error ", result));
  }
  cuGetErrorString(result, &text);
  return absl::Status(CodeOf(result),
                      absl::StrCat(function, ": ", name, " (", text == nullptr ? "" : text, ")"));
}

bool CudaDriver::IsInUse() {
  void* const library = dlopen(NameOfLibrary().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) {
    return false;
  }
  CudaDriver driver;
  int count = 0;
  driver.cuDeviceGetCount =
      reinterpret_cast<decltype(driver.cuDeviceGetCount)>(dlsym(library, "cuDeviceGetCount"));
  // Before its initialisation the driver returns CUDA_ERROR_NOT_INITIALIZED.
  const bool in_use =
      driver.cuDeviceGetCount != nullptr && driver.cuDeviceGetCount(&count) == CUDA_SUCCESS;
  dlclose(library);
  return in_use && count > 0;
}

absl::StatusOr<const CudaDriver*> CudaDriver::Load() {
  static const auto* const driver = new absl::StatusOr<CudaDriver>(FindAndInitialise());
  if (!driver->ok()) {
    return driver->status();
  }
  return &**driver;
}

}  // namespace entrain
