// What the fake driver exports besides the driver's functions: for tests, found by dlsym.
#pragma once

#include <cstddef>

extern "C" {

// The nth call from now of a function ("cuMemAlloc_v2") does nothing and returns `result`; nth 0:
// every call, until `result` 0 ends it. FAKE_CUDA_FAIL=FUNCTION:NTH:RESULT does the same from the
// start.
void FakeCudaFail(const char* function, int nth, int result);
// How often a function was called.
int FakeCudaCalls(const char* function);
// How many there are of "stream", "event", "device memory", "pinned memory", "import"; -1: of what?
int FakeCudaLive(const char* what);
// 1: streams begin nothing more, until 0.
void FakeCudaPause(int paused);
// Where the device sees memory of a program; null: nowhere. For fakes of other libraries that work
// on device memory.
void* FakeCudaSeen(const void* memory, size_t bytes);

}  // extern "C"
