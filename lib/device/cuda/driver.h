// A table of the CUDA driver's functions. They are found at run time, and nothing is linked. So one
// binary works on machines with and without a driver. The functions have the driver's own versioned
// names. NVIDIA's header documents them.
#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

#define ENTRAIN_CUDA_DRIVER(X)   \
  X(cuInit)                      \
  X(cuGetErrorName)              \
  X(cuGetErrorString)            \
  X(cuDeviceGet)                 \
  X(cuDeviceGetCount)            \
  X(cuDeviceGetName)             \
  X(cuDeviceGetUuid_v2)          \
  X(cuDeviceGetAttribute)        \
  X(cuDevicePrimaryCtxGetState)  \
  X(cuDevicePrimaryCtxRetain)    \
  X(cuCtxGetStreamPriorityRange) \
  X(cuCtxPushCurrent_v2)         \
  X(cuCtxPopCurrent_v2)          \
  X(cuCtxGetCurrent)             \
  X(cuCtxGetDevice)              \
  X(cuMemAlloc_v2)               \
  X(cuMemFree_v2)                \
  X(cuMemHostAlloc)              \
  X(cuMemFreeHost)               \
  X(cuMemcpyAsync)               \
  X(cuMemsetD8Async)             \
  X(cuPointerGetAttributes)      \
  X(cuStreamCreateWithPriority)  \
  X(cuStreamDestroy_v2)          \
  X(cuStreamGetCtx)              \
  X(cuStreamWaitEvent)           \
  X(cuStreamWaitValue32_v2)      \
  X(cuLaunchHostFunc)            \
  X(cuEventCreate)               \
  X(cuEventDestroy_v2)           \
  X(cuEventRecord)               \
  X(cuEventQuery)                \
  X(cuModuleLoadData)            \
  X(cuModuleGetFunction)         \
  X(cuLaunchKernel)

// Thread safety: any thread.
struct CudaDriver {
#define ENTRAIN_CUDA_POINTER(name) decltype(&::name) name;
  ENTRAIN_CUDA_DRIVER(ENTRAIN_CUDA_POINTER)
#undef ENTRAIN_CUDA_POINTER

  // Translates the result of a function: OK, or "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of
  // memory)". The codes are RESOURCE_EXHAUSTED for shortages, INVALID_ARGUMENT for wrong values and
  // handles, UNIMPLEMENTED for unsupported requests, and INTERNAL for all other errors.
  absl::Status Check(CUresult result, absl::string_view function) const;

  // Loads and initialises libcuda.so.1, or the file in ENTRAIN_CUDA_LIBRARY, at the first call in
  // the process. Returns UNAVAILABLE with the reason if there is no driver, if it lacks a function,
  // or if it sees no device.
  static absl::StatusOr<const CudaDriver*> Load();
  // Returns true if this process has loaded and initialised the driver, by Load or otherwise.
  static bool IsInUse();
};

// ENTRAIN_CUDA(driver, cuMemFree_v2, memory) calls the function and returns its result as a status.
#define ENTRAIN_CUDA(driver, function, ...) \
  (driver).Check((driver).function(__VA_ARGS__), #function)

}  // namespace entrain
