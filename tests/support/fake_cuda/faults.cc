#include "tests/support/fake_cuda/faults.h"

#include <cstdio>
#include <cstdlib>

namespace fake_cuda {

Faults::Faults() {
  const char* const text = std::getenv("FAKE_CUDA_FAIL");
  char function[64];
  int nth = 0, result = 0;
  if (text == nullptr) {
    return;
  }
  if (std::sscanf(text, "%63[^:]:%d:%d", function, &nth, &result) != 3) {
    std::fprintf(stderr, "FAKE_CUDA_FAIL: \"%s\" is not FUNCTION:NTH:RESULT\n", text);
    std::abort();
  }
  Set(function, nth, static_cast<CUresult>(result));
}

void Faults::Set(const std::string& function, int nth, CUresult result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (result == CUDA_SUCCESS) {
    faults_.erase(function);
  } else {
    faults_[function] = {nth, result};
  }
}

CUresult Faults::Count(const char* function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[function];
  const auto found = faults_.find(function);
  if (found == faults_.end()) {
    return CUDA_SUCCESS;
  }
  Fault& fault = found->second;
  const CUresult result = fault.result;
  if (fault.nth == 0) {
    return result;
  }
  if (--fault.nth > 0) {
    return CUDA_SUCCESS;
  }
  faults_.erase(found);
  return result;
}

int Faults::Calls(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_[function];
}

}  // namespace fake_cuda
