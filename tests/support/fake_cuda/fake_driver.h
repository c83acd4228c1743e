// The exports of the fake driver besides the driver's functions: for tests, found by dlsym.
#pragma once

#include <cstddef>

extern "C" {

// The nth call from now of a function ("cuMemAlloc_v2") does nothing and returns `result`. nth 0:
// every call does, until FakeCudaFail gives `result` 0. FAKE_CUDA_FAIL=FUNCTION:NTH:RESULT does the
// same from the start.
void FakeCudaFail(const char* function, int nth, int result);
// Returns how often a function was called.
int FakeCudaCalls(const char* function);
// Returns how many objects exist of "stream", "event", "device memory", "pinned memory" or
// "import". -1: unknown kind.
int FakeCudaLive(const char* what);
// 1: streams begin no further operation, until 0 is given.
void FakeCudaPause(int paused);
// Returns the device's address of a program's memory. Null: there is none. For fakes of other
// libraries that work on device memory.
void* FakeCudaSeen(const void* memory, size_t bytes);

}  // extern "C"
