// The CUDA driver and cuBLAS as tables of functions that are loaded at run time. So one program
// runs on machines with and without a GPU. The program is linked with neither. NVIDIA's
// documentation describes the functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda.h>

namespace trainer {

#define TRAINER_CUDA_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuGetErrorName)               \
  X(cuGetErrorString)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetCount)             \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuCtxPushCurrent_v2)          \
  X(cuMemAlloc_v2)                \
  X(cuMemFree_v2)                 \
  X(cuMemHostAlloc)               \
  X(cuMemFreeHost)                \
  X(cuMemcpyAsync)                \
  X(cuMemsetD8Async)              \
  X(cuStreamCreate)               \
  X(cuStreamDestroy_v2)           \
  X(cuStreamSynchronize)          \
  X(cuEventCreate)                \
  X(cuEventDestroy_v2)            \
  X(cuEventRecord)                \
  X(cuEventQuery)                 \
  X(cuModuleLoadData)             \
  X(cuModuleGetFunction)          \
  X(cuLaunchKernel)

struct CudaFunctions {
#define TRAINER_CUDA_POINTER(name) decltype(&::name) name;
  TRAINER_CUDA_FUNCTIONS(TRAINER_CUDA_POINTER)
#undef TRAINER_CUDA_POINTER

  // Throws Error naming the function and the result, unless the result is CUDA_SUCCESS.
  void Check(CUresult result, const char* function) const;
  // Loads libcuda.so.1, or the library that ENTRAIN_CUDA_LIBRARY names (as Entrain does), and
  // initialises it. Throws Error with the reason.
  static CudaFunctions Load();
};

// The part of cuBLAS's binary interface that is used here, so that the build does not need cuBLAS's
// header. Matrices are in column-major order.
enum CublasOperation : int { kCublasAsIs = 0, kCublasTransposed = 1 };
struct CublasFunctions {
  int (*cublasCreate_v2)(void** handle);
  int (*cublasDestroy_v2)(void* handle);
  int (*cublasSetStream_v2)(void* handle, CUstream stream);
  int (*cublasSetWorkspace_v2)(void* handle, void* workspace, size_t bytes);
  const char* (*cublasGetStatusString)(int status);
  int (*cublasSgemm_v2)(void* handle, CublasOperation of_a, CublasOperation of_b, int m, int n,
                        int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                        const float* beta, float* c, int ldc);
  int (*cublasSgemmStridedBatched)(void* handle, CublasOperation of_a, CublasOperation of_b, int m,
                                   int n, int k, const float* alpha, const float* a, int lda,
                                   long long stride_a, const float* b, int ldb, long long stride_b,
                                   const float* beta, float* c, int ldc, long long stride_c,
                                   int batch);

  // Throws Error unless `status` is CUBLAS_STATUS_SUCCESS.
  void Check(int status, const char* function) const;
  // Loads the library that TRAINER_CUBLAS_LIBRARY names. If it is not set, loads libcublas.so.13 or
  // .12. Throws Error with the reason.
  static CublasFunctions Load();
};

}  // namespace trainer
