// The driver's functions that lib/device/cuda uses, as documented by CUDA. The fake enforces CUDA's
// rules strictly: README.md.
#include "tests/support/fake_cuda/fake_driver.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

#include "tests/support/fake_cuda/driver_state.h"
#include "tests/support/fake_cuda/kernels.h"
#include "tests/support/fake_cuda/memory.h"

using fake_cuda::DriverState;
using fake_cuda::FakeKernel;
using fake_cuda::FakeMemory;
using fake_cuda::Mark;
using fake_cuda::Memory;
using fake_cuda::MemoryOrigin;

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))
#define FAKE_ENTER(needs_context)                                                 \
  if (const CUresult refused = DriverState::Get().Enter(__func__, needs_context); \
      refused != CUDA_SUCCESS) {                                                  \
    return refused;                                                               \
  }
// Defines `name` as a stream of the current context, or returns an error.
#define FAKE_STREAM(name, handle)                        \
  const auto name = DriverState::Get().StreamOf(handle); \
  if (name == nullptr) {                                 \
    return CUDA_ERROR_INVALID_HANDLE;                    \
  }

namespace {

struct NamedResult {
  CUresult result;
  const char *name, *text;
};
constexpr NamedResult kResults[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const NamedResult* Find(CUresult result) {
  for (const NamedResult& known : kResults) {
    if (known.result == result) {
      return &known;
    }
  }
  return nullptr;
}

// Writes one attribute of memory. Returns false if there is no such attribute.
bool AttributeOf(const FakeMemory& memory, CUpointer_attribute attribute, void* out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      const unsigned type =
          memory.origin == MemoryOrigin::kPinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      std::memcpy(out, &type, sizeof(type));
      return true;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      std::memcpy(out, &memory.ordinal, sizeof(int));
      return true;
    default:
      return false;
  }
}

bool Holds(uint32_t now, uint32_t value, unsigned flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<int32_t>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return ~(now | value) != 0;
  }
}

// Addresses that the driver does not know are host memory, and are returned unchanged.
char* SeenOrHost(CUdeviceptr address, size_t bytes, bool* pageable) {
  char* const seen = Memory().Seen(address, bytes);
  FakeMemory begins;
  if (seen == nullptr && Memory().Find(address, 1, &begins)) {
    *pageable = false;
    return nullptr;  // begins in known memory and ends beyond it
  }
  *pageable = seen == nullptr;
  return seen != nullptr ? seen : reinterpret_cast<char*>(address);
}

// CUDA does not specify whether an allocation waits for the device. Sometimes it does.
void DrainIfAllocatingMayWait(const char* function) {
  static const char* const asked = std::getenv("FAKE_CUDA_ALLOC_WAITS");
  if (asked != nullptr && std::strcmp(asked, "1") == 0) {
    DriverState::Get().Drain(function);
  }
}

}  // namespace

// ---- For tests

FAKE_EXPORT void FakeCudaFail(const char* function, int nth, int result) {
  DriverState::Get().faults().Set(function, nth, static_cast<CUresult>(result));
}
FAKE_EXPORT int FakeCudaCalls(const char* function) {
  return DriverState::Get().faults().Calls(function);
}
FAKE_EXPORT int FakeCudaLive(const char* what) {
  const std::string kind(what);
  return kind == "stream" || kind == "event" ? DriverState::Get().Live(kind == "stream")
         : kind == "device memory"           ? Memory().Live(MemoryOrigin::kDevice)
         : kind == "pinned memory"           ? Memory().Live(MemoryOrigin::kPinned)
                                             : -1;
}
FAKE_EXPORT void FakeCudaPause(int paused) {
  fake_cuda::FakeStream::Pause(paused != 0);
}
FAKE_EXPORT void* FakeCudaSeen(const void* memory, size_t bytes) {
  return Memory().Seen(reinterpret_cast<uintptr_t>(memory), bytes);
}

// ---- Devices and contexts

FAKE_EXPORT CUresult cuInit(unsigned flags) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : DriverState::Get().Init();
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult result, const char** out) {
  const NamedResult* const known = Find(result);
  *out = known == nullptr ? nullptr : known->name;
  return known == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult result, const char** out) {
  const NamedResult* const known = Find(result);
  *out = known == nullptr ? nullptr : known->text;
  return known == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int* out) {
  FAKE_ENTER(false)
  *out = static_cast<int>(DriverState::Get().devices().size());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice* out, int ordinal) {
  FAKE_ENTER(false)
  if (ordinal < 0 || ordinal >= static_cast<int>(DriverState::Get().devices().size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *out = ordinal;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char* out, int length, CUdevice device) {
  FAKE_ENTER(false)
  std::snprintf(out, static_cast<size_t>(length), "Fake device %d", device);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
  FAKE_ENTER(false)
  std::memset(out->bytes, device + 1, sizeof(out->bytes));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice) {
  FAKE_ENTER(false)
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *out = 2;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *out = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *out = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  FAKE_ENTER(false)
  if (device < 0 || device >= static_cast<int>(DriverState::Get().devices().size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *flags = 0;
  *active = DriverState::Get().IsActive(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  FAKE_ENTER(false)
  return DriverState::Get().Retain(device, out);
}

FAKE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_ENTER(false)
  return DriverState::Get().Push(context);
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice* out) {
  FAKE_ENTER(true)
  *out = DriverState::Get().Current()->ordinal;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  // Not FAKE_ENTER: a thread that has pushed a context can pop it, whatever has failed since.
  const CUresult fault = DriverState::Get().faults().Count(__func__);
  const CUresult popped = DriverState::Get().Pop(out);
  return fault != CUDA_SUCCESS ? fault : popped;
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext* out) {
  FAKE_ENTER(false)
  *out = reinterpret_cast<CUcontext>(DriverState::Get().Current());
  return CUDA_SUCCESS;
}

// ---- Memory. Freeing waits for the device, as the driver's does.

FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  FAKE_ENTER(true)
  DrainIfAllocatingMayWait(__func__);
  return Memory().Allocate(DriverState::Get().Current()->ordinal, bytes, out);
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr memory) {
  FAKE_ENTER(true)
  DriverState::Get().Drain(__func__);
  return Memory().Free(memory, MemoryOrigin::kDevice);
}

FAKE_EXPORT CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  FAKE_ENTER(true)
  DrainIfAllocatingMayWait(__func__);
  constexpr unsigned kNeeded = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  return (flags & kNeeded) != kNeeded
             // The driver would allocate it, but without the properties that we promise.
             ? CUDA_ERROR_INVALID_VALUE
             : Memory().AllocatePinned(DriverState::Get().Current()->ordinal, bytes, out);
}

FAKE_EXPORT CUresult cuMemFreeHost(void* memory) {
  FAKE_ENTER(true)
  DriverState::Get().Drain(__func__);
  return Memory().Free(reinterpret_cast<uintptr_t>(memory), MemoryOrigin::kPinned);
}

// For pageable memory, the caller waits for the copy.
FAKE_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                   CUstream handle) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  bool to_pageable = false, from_pageable = false;
  char* const to = SeenOrHost(dst, bytes, &to_pageable);
  const char* const from = SeenOrHost(src, bytes, &from_pageable);
  if (to == nullptr || from == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  DriverState::Get().Enqueue(stream, [=] { std::memmove(to, from, bytes); });
  if (to_pageable || from_pageable) {
    stream->Await(stream->Here(stream).operations, __func__);
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes,
                                     CUstream handle) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  char* const to = Memory().Seen(dst, bytes);
  if (to == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  DriverState::Get().Enqueue(stream, [=] { std::memset(to, value, bytes); });
  return CUDA_SUCCESS;
}

// This function accepts every address.
FAKE_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                            void** out, CUdeviceptr address) {
  FAKE_ENTER(false)
  FakeMemory memory;
  const bool known = Memory().Find(address, 1, &memory);
  for (unsigned i = 0; i < count; ++i) {
    const int none = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
    if (!known) {
      std::memcpy(out[i], &none, sizeof(none));
    } else if (!AttributeOf(memory, attributes[i], out[i])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// ---- Streams and events

FAKE_EXPORT CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  FAKE_ENTER(true)
  return flags > CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                        : DriverState::Get().NewStream(flags == 0, out);
}

FAKE_EXPORT CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  FAKE_ENTER(true)
  *lowest = 0;
  *highest = -5;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) {
  FAKE_ENTER(true)
  return flags > CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                        : DriverState::Get().NewStream(flags == 0, out);
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  FAKE_ENTER(true)
  return DriverState::Get().DropStream(stream);
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  DriverState::Get().Enqueue(stream, [] {});
  stream->Await(stream->Here(stream).operations, __func__);
  return DriverState::Get().broken();
}

// Returns, for the default stream, the thread's context. There must be one.
FAKE_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* out) {
  FAKE_ENTER(false)
  auto* const device = DriverState::Get().DeviceOf(stream);
  *out = reinterpret_cast<CUcontext>(device);
  return device != nullptr   ? CUDA_SUCCESS
         : stream == nullptr ? CUDA_ERROR_INVALID_CONTEXT
                             : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  Mark mark;
  const CUresult found = DriverState::Get().MarkOf(event, &mark);
  if (found != CUDA_SUCCESS || flags != 0) {
    return found != CUDA_SUCCESS ? found : CUDA_ERROR_INVALID_VALUE;
  }
  if (mark.stream != nullptr && mark.stream != stream) {
    DriverState::Get().Enqueue(stream, [] {}, {mark});
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                            unsigned flags) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  const auto* const word = reinterpret_cast<const uint32_t*>(Memory().Seen(address, 4));
  if (word == nullptr || address % 4 != 0 || flags > CU_STREAM_WAIT_VALUE_NOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  DriverState::Get().Enqueue(stream, [=] {
    while (!Holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                             unsigned flags) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  auto* const word = reinterpret_cast<uint32_t*>(Memory().Seen(address, 4));
  if (word == nullptr || address % 4 != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  DriverState::Get().Enqueue(stream, [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  DriverState::Get().Enqueue(stream, [=] { function(argument); });
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventCreate(CUevent* out, unsigned) {
  FAKE_ENTER(true)
  return DriverState::Get().NewEvent(out);
}

FAKE_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  FAKE_ENTER(true)
  return DriverState::Get().DropEvent(event);
}

FAKE_EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  return DriverState::Get().Record(event, stream);
}

FAKE_EXPORT CUresult cuEventQuery(CUevent event) {
  FAKE_ENTER(true)
  Mark mark;
  const CUresult found = DriverState::Get().MarkOf(event, &mark);
  if (found != CUDA_SUCCESS) {
    return found;
  }
  return mark.stream == nullptr || mark.stream->Reached(mark.operations) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_NOT_READY;
}

// ---- Kernels

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  FAKE_ENTER(true)
  constexpr uint32_t kFatbin = 0xba55ed50;
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic != kFatbin) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  static char module;
  *out = reinterpret_cast<CUmodule>(&module);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  FAKE_ENTER(true)
  const FakeKernel* kernel = fake_cuda::FindKernel(name);
  *out = reinterpret_cast<CUfunction>(const_cast<FakeKernel*>(kernel));
  return kernel == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared_bytes, CUstream handle,
                                    void** parameters, void** extra) {
  FAKE_ENTER(true)
  FAKE_STREAM(stream, handle)
  const auto* const kernel = reinterpret_cast<const FakeKernel*>(function);
  if (grid_x == 0 || grid_x > 0x7fffffff || grid_y != 1 || grid_z != 1 || block_y != 1 ||
      block_z != 1 || static_cast<int>(block_x) != fake_cuda::ThreadsOfABlock() ||
      shared_bytes != 0 || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Arguments are copied now. The memory that they point to is read when the kernel runs.
  const auto* const given = static_cast<const char*>(parameters[0]);
  auto args = std::make_shared<std::vector<double>>((kernel->arg_bytes + 7) / 8);
  std::memcpy(args->data(), given, kernel->arg_bytes);
  DriverState::Get().Enqueue(stream, [=] {
    if (!kernel->translate(args->data())) {
      std::fprintf(stderr, "fake_cuda: %s was given an address that is none of the device\n",
                   kernel->name);
      DriverState::Get().Break(CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
    kernel->run(args->data(), static_cast<int>(grid_x));
  });
  return CUDA_SUCCESS;
}
