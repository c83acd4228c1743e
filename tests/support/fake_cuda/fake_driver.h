// The functions that the fake driver exports besides those of a real driver. Tests look them up by
// dlsym.
#pragma once

#include <cstddef>

extern "C" {

// Makes the nth call from now of a function ("cuMemAlloc_v2") do nothing and return `result`. If
// nth is 0, every call does so, until FakeCudaFail is called with `result` 0.
// FAKE_CUDA_FAIL=FUNCTION:NTH:RESULT has this effect from the start.
void FakeCudaFail(const char* function, int nth, int result);
// Returns the number of calls of a function.
int FakeCudaCalls(const char* function);
// Returns the number of objects of a kind that exist: "stream", "event", "device memory" or "pinned
// memory". Returns -1 for an unknown kind.
int FakeCudaLive(const char* what);
// With 1, streams begin no further operation, until the function is called with 0.
void FakeCudaPause(int paused);
// Returns the device's address of a program's memory, or null if there is none. For fakes of other
// libraries that work on device memory.
void* FakeCudaSeen(const void* memory, size_t bytes);

}  // extern "C"
