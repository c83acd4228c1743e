// Errors that tests ask for. Thread safety: any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include <cuda.h>

namespace fake_cuda {

class Faults {
 public:
  Faults();
  void Set(const std::string& function, int nth, CUresult result);
  // Counts a call of the function. Returns the error with which the call must fail, or
  // CUDA_SUCCESS.
  CUresult Count(const char* function);
  int Calls(const std::string& function);

 private:
  struct Fault {
    int nth = 0;  // 0: every call
    CUresult result = CUDA_SUCCESS;
  };
  std::mutex mutex_;
  std::map<std::string, Fault> faults_;
  std::map<std::string, int> calls_;
};

}  // namespace fake_cuda
