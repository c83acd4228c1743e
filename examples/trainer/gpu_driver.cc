#include "examples/trainer/gpu_driver.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

std::string Setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// Opens the first of `names` that exists. Never closes it, because both libraries have threads and
// exit handlers.
void* OpenLibrary(const std::vector<std::string>& names, const std::string& what) {
  std::string reason;
  for (const std::string& name : names) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
    const char* const said = dlerror();
    reason = reason.empty() ? said : reason;
  }
  throw Error("--device cuda: " + what + ": " + reason);
}

template <typename F>
void Find(void* library, const char* name, const char* what, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (*function == nullptr) {
    throw Error(std::string("--device cuda: ") + what + " is too old: it has no " + name);
  }
}

}  // namespace

void CudaFunctions::Check(CUresult result, const char* function) const {
  if (result == CUDA_SUCCESS) {
    return;
  }
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    throw Error("--device cuda: " + std::string(function) + ": error " + std::to_string(result));
  }
  cuGetErrorString(result, &text);
  throw Error("--device cuda: " + std::string(function) + ": " + name + " (" +
              (text == nullptr ? "" : text) + ")");
}

CudaFunctions CudaFunctions::Load() {
  const std::string name = Setting("ENTRAIN_CUDA_LIBRARY", "libcuda.so.1");
  void* const library = OpenLibrary(
      {name}, "no CUDA driver here (it comes with NVIDIA's driver; --device cpu needs none)");
  CudaFunctions found;
#define TRAINER_CUDA_FIND(function) Find(library, #function, "the CUDA driver", &found.function);
  TRAINER_CUDA_FUNCTIONS(TRAINER_CUDA_FIND)
#undef TRAINER_CUDA_FIND
  found.Check(found.cuInit(0), "cuInit");
  return found;
}

void CublasFunctions::Check(int status, const char* function) const {
  if (status != 0) {
    throw Error("--device cuda: " + std::string(function) + ": " + cublasGetStatusString(status));
  }
}

CublasFunctions CublasFunctions::Load() {
  const std::string named = Setting("TRAINER_CUBLAS_LIBRARY", "");
  const std::vector<std::string> usual = {"libcublas.so.13", "libcublas.so.12"};
  void* const library = OpenLibrary(
      named.empty() ? usual : std::vector<std::string>{named},
      "no cuBLAS here (it comes with CUDA's toolkit and with NVIDIA's package libcublas; "
      "TRAINER_CUBLAS_LIBRARY may say where it is)");
  CublasFunctions found;
#define TRAINER_CUBLAS_FIND(function) Find(library, #function, "cuBLAS", &found.function);
  TRAINER_CUBLAS_FIND(cublasCreate_v2)
  TRAINER_CUBLAS_FIND(cublasDestroy_v2)
  TRAINER_CUBLAS_FIND(cublasSetStream_v2)
  TRAINER_CUBLAS_FIND(cublasSetWorkspace_v2)
  TRAINER_CUBLAS_FIND(cublasGetStatusString)
  TRAINER_CUBLAS_FIND(cublasSgemm_v2)
  TRAINER_CUBLAS_FIND(cublasSgemmStridedBatched)
#undef TRAINER_CUBLAS_FIND
  return found;
}

}  // namespace trainer
