// cuBLAS's functions (those that examples/trainer uses), as NVIDIA documents them: README.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <cblas.h>
#include <dlfcn.h>

#include "examples/trainer/gpu_driver.h"

using trainer::CublasOperation;

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int {  // cublasStatus_t
  kSuccess = 0,
  kNotInitialized = 1,
  kInvalidValue = 7,
  kMappingError = 11,
};

struct Handle {
  int device = 0;
  CUstream stream = nullptr;
  bool workspace = false;
};

// The functions of the fake driver that are needed. They are those of the copy that the program has
// loaded.
struct Cuda {
  CUresult (*cuLaunchHostFunc)(CUstream stream, CUhostFn function, void* argument);
  CUresult (*cuCtxGetDevice)(CUdevice* ordinal);
  void* (*Seen)(const void* memory, size_t bytes);
};

const Cuda& TheCuda() {
  static const Cuda cuda = [] {
    Cuda found = {};
    const char* const name = std::getenv("ENTRAIN_CUDA_LIBRARY");
    void* const library = name == nullptr ? nullptr : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* symbol) {
      void* const at = library == nullptr ? nullptr : dlsym(library, symbol);
      if (at == nullptr) {
        std::fprintf(stderr, "fake_cublas: no fake driver with %s\n", symbol);
        std::abort();
      }
      function = reinterpret_cast<std::decay_t<decltype(function)>>(at);
    };
    find(found.cuLaunchHostFunc, "cuLaunchHostFunc");
    find(found.cuCtxGetDevice, "cuCtxGetDevice");
    find(found.Seen, "FakeCudaSeen");
    return found;
  }();
  return cuda;
}

struct Factor {
  CublasOperation operation;
  const float* at;
  int leading;
  long long stride;
};

// A call with its scalars, in the form in which the stream runs it.
struct Call {
  int m, n, k;
  float alpha, beta;
  Factor a, b, c;
  int batch;
};

// Returns the bytes of column-major matrices with this number of rows and columns, as they are
// stored, not as they are used.
size_t BytesOf(const Factor& f, int rows, int columns, int batch) {
  const int64_t last = int64_t{f.stride} * (batch - 1) + int64_t{f.leading} * (columns - 1) + rows;
  return static_cast<size_t>(last) * sizeof(float);
}

// Returns the matrix's address for the host. Returns null, and prints a line, if a part of it is
// not on the device.
float* Look(const char* name, const Factor& f, int rows, int columns, int batch) {
  const bool turned = f.operation == trainer::kCublasTransposed;
  const size_t bytes = BytesOf(f, turned ? columns : rows, turned ? rows : columns, batch);
  void* const seen = TheCuda().Seen(f.at, bytes);
  if (seen == nullptr) {
    std::fprintf(stderr, "fake_cublas: matrix %s is not memory of the device, or too short\n",
                 name);
  }
  return static_cast<float*>(seen);
}

void RunCall(void* raw) {
  const std::unique_ptr<Call> call(static_cast<Call*>(raw));
  const float* const a = Look("A", call->a, call->m, call->k, call->batch);
  const float* const b = Look("B", call->b, call->k, call->n, call->batch);
  float* const c = Look("C", call->c, call->m, call->n, call->batch);
  if (a == nullptr || b == nullptr || c == nullptr) {
    std::abort();  // it existed when the call was made
  }
  const auto turn = [](const Factor& f) {
    return f.operation == trainer::kCublasTransposed ? CblasTrans : CblasNoTrans;
  };
  for (int i = 0; i < call->batch; ++i) {
    cblas_sgemm(CblasColMajor, turn(call->a), turn(call->b), call->m, call->n, call->k, call->alpha,
                a + i * call->a.stride, call->a.leading, b + i * call->b.stride, call->b.leading,
                call->beta, c + i * call->c.stride, call->c.leading);
  }
}

bool Fits(const Factor& f, int rows, int columns) {
  const int stored = f.operation == trainer::kCublasTransposed ? columns : rows;
  return f.leading >= stored && f.stride >= 0;
}

int Submit(void* raw, const Call& call) {
  const auto* const handle = static_cast<const Handle*>(raw);
  CUdevice device = -1;
  if (handle == nullptr || TheCuda().cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      device != handle->device) {
    return kNotInitialized;
  }
  if (handle->stream == nullptr || !handle->workspace) {
    std::fprintf(stderr, "fake_cublas: the handle has no %s\n",
                 handle->stream == nullptr ? "stream" : "workspace");
    return kNotInitialized;
  }
  if (call.m < 1 || call.n < 1 || call.k < 1 || call.batch < 1 || !Fits(call.a, call.m, call.k) ||
      !Fits(call.b, call.k, call.n) || !Fits(call.c, call.m, call.n) ||
      (call.batch > 1 && call.c.stride < int64_t{call.c.leading} * (call.n - 1) + call.m)) {
    return kInvalidValue;
  }
  if (Look("A", call.a, call.m, call.k, call.batch) == nullptr ||
      Look("B", call.b, call.k, call.n, call.batch) == nullptr ||
      Look("C", call.c, call.m, call.n, call.batch) == nullptr) {
    return kMappingError;
  }
  auto copy = std::make_unique<Call>(call);
  if (TheCuda().cuLaunchHostFunc(handle->stream, RunCall, copy.get()) != CUDA_SUCCESS) {
    return kMappingError;
  }
  (void)copy.release();
  return kSuccess;
}

}  // namespace

FAKE_EXPORT int cublasCreate_v2(void** out) {
  CUdevice device = -1;
  if (TheCuda().cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return kNotInitialized;
  }
  *out = new Handle{device};
  return kSuccess;
}

FAKE_EXPORT int cublasDestroy_v2(void* handle) {
  delete static_cast<Handle*>(handle);
  return kSuccess;
}

FAKE_EXPORT int cublasSetStream_v2(void* handle, CUstream stream) {
  *static_cast<Handle*>(handle) = {static_cast<Handle*>(handle)->device, stream, false};
  return kSuccess;
}

FAKE_EXPORT int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 ||
      TheCuda().Seen(workspace, bytes) == nullptr) {
    return kInvalidValue;
  }
  static_cast<Handle*>(handle)->workspace = true;
  return kSuccess;
}

FAKE_EXPORT const char* cublasGetStatusString(int status) {
  return status == kSuccess          ? "success"
         : status == kNotInitialized ? "the library was not initialized"
         : status == kInvalidValue   ? "an invalid value was given"
                                     : "an access to GPU memory space failed";
}

FAKE_EXPORT int cublasSgemm_v2(void* handle, CublasOperation of_a, CublasOperation of_b, int m,
                               int n, int k, const float* alpha, const float* a, int lda,
                               const float* b, int ldb, const float* beta, float* c, int ldc) {
  return Submit(handle, {m,
                         n,
                         k,
                         *alpha,
                         *beta,
                         {of_a, a, lda, 0},
                         {of_b, b, ldb, 0},
                         {trainer::kCublasAsIs, c, ldc, 0},
                         1});
}

FAKE_EXPORT int cublasSgemmStridedBatched(void* handle, CublasOperation of_a, CublasOperation of_b,
                                          int m, int n, int k, const float* alpha, const float* a,
                                          int lda, long long stride_a, const float* b, int ldb,
                                          long long stride_b, const float* beta, float* c, int ldc,
                                          long long stride_c, int batch) {
  return Submit(handle, {m,
                         n,
                         k,
                         *alpha,
                         *beta,
                         {of_a, a, lda, stride_a},
                         {of_b, b, ldb, stride_b},
                         {trainer::kCublasAsIs, c, ldc, stride_c},
                         batch});
}
