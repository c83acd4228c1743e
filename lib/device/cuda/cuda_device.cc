#include "lib/device/cuda/cuda_device.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/device/cuda/cuda_kernels.h"

// The module with all kernels, from nvcc (kernels_image.S).
extern "C" const unsigned char entrain_cuda_image[];

namespace entrain {
namespace {

CUdeviceptr Address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}
void* Pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}
CUstream Stream(StreamHandle stream) {
  return static_cast<CUstream>(stream);
}
CUevent Event(EventHandle event) {
  return static_cast<CUevent>(event);
}

// ---- Waiting for a word. If the device does not support this, a thread of the driver waits.

struct AwaitedWord {
  const uint32_t* word;
  uint32_t at_least;
};

void CUDA_CB WaitForWord(void* argument) {
  const std::unique_ptr<AwaitedWord> awaited(static_cast<AwaitedWord*>(argument));
  int64_t nap = 1;
  // Acquire order, paired with the release of the thread that increments the word. So later work on
  // the stream sees the earlier writes of that thread.
  while (static_cast<int32_t>(__atomic_load_n(awaited->word, __ATOMIC_ACQUIRE) -
                              awaited->at_least) < 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(nap));
    nap = nap < 200 ? nap + 1 + nap / 10 : nap;
  }
}

}  // namespace

absl::Status CudaDevice::Enter() {
  ENTRAIN_RETURN_IF_ERROR(CheckNotForked());
  return ENTRAIN_CUDA(driver_, cuCtxPushCurrent_v2, context_);
}

void CudaDevice::Leave() {
  CUcontext ours = nullptr;
  const absl::Status left = ENTRAIN_CUDA(driver_, cuCtxPopCurrent_v2, &ours);
  if (!left.ok()) {
    ENTRAIN_LOG(kWarning, "cuda: device ", ordinal_, ": ", left.message());
  }
}

template <typename F>
absl::Status CudaDevice::Within(F f) {
  ENTRAIN_RETURN_IF_ERROR(Enter());
  absl::Status status = f();
  CUcontext ours = nullptr;
  status.Update(ENTRAIN_CUDA(driver_, cuCtxPopCurrent_v2, &ours));
  return status;
}

template <typename F>
void CudaDevice::Release(F f) {
  const absl::Status status = Within(std::move(f));
  if (!status.ok() && !absl::IsFailedPrecondition(status)) {
    ENTRAIN_LOG(kWarning, "cuda: device ", ordinal_, ": ", status.message());
  }
}

// ---- Creation

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaDriver& driver,
                                                               int ordinal) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, ordinal));
  ENTRAIN_RETURN_IF_ERROR(Annotate(device->Prepare(), absl::StrCat("CUDA device ", ordinal)));
  return device;
}

absl::Status CudaDevice::Prepare() {
  CUdevice device = 0;
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGet, &device, ordinal_));
  char name[256] = "";
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGetName, name, sizeof(name), device));
  name_ = name;
  CUuuid uuid = {};
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGetUuid_v2, &uuid, device));
  static_assert(sizeof(uuid.bytes) == sizeof(uuid_));
  std::memcpy(uuid_.data(), uuid.bytes, sizeof(uuid_));
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGetAttribute, &processors_,
                                       CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDevicePrimaryCtxRetain, &context_, device));
  ENTRAIN_RETURN_IF_ERROR(LoadKernels());
  // Allocates more rooms than are usually in use at a time. A later allocation could wait for a
  // stream that waits for the host.
  std::array<ResultRoom, 4> rooms;
  for (ResultRoom& room : rooms) {
    ENTRAIN_ASSIGN_OR_RETURN(room, TakeRoom());
  }
  for (const ResultRoom& room : rooms) {
    PutBack(room);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::LoadKernels() {
  return Within([this]() -> absl::Status {
    CUmodule module = nullptr;
    ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuModuleLoadData, &module, entrain_cuda_image));
    for (int i = 0; i < kKernelCount; ++i) {
      CUfunction& function = functions_[static_cast<size_t>(i)];
      ENTRAIN_RETURN_IF_ERROR(
          Annotate(ENTRAIN_CUDA(driver_, cuModuleGetFunction, &function, module, kKernelNames[i]),
                   kKernelNames[i]));
    }
    return absl::OkStatus();
  });
}

// ---- Memory

absl::StatusOr<void*> CudaDevice::Allocate(int64_t bytes) {
  CUdeviceptr memory = 0;
  ENTRAIN_RETURN_IF_ERROR(Within(
      [&] { return ENTRAIN_CUDA(driver_, cuMemAlloc_v2, &memory, static_cast<size_t>(bytes)); }));
  return Pointer(memory);
}

void CudaDevice::Free(void* memory) {
  if (memory != nullptr) {
    Release([&] { return ENTRAIN_CUDA(driver_, cuMemFree_v2, Address(memory)); });
  }
}

absl::StatusOr<void*> CudaDevice::AllocatePinned(int64_t bytes) {
  void* memory = nullptr;
  ENTRAIN_RETURN_IF_ERROR(Within([&] {
    return ENTRAIN_CUDA(driver_, cuMemHostAlloc, &memory, static_cast<size_t>(bytes),
                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  }));
  return memory;
}

void CudaDevice::FreePinned(void* memory) {
  if (memory != nullptr) {
    Release([&] { return ENTRAIN_CUDA(driver_, cuMemFreeHost, memory); });
  }
}

// ---- Streams

absl::StatusOr<StreamHandle> CudaDevice::CreateStream() {
  // The stream gets the highest priority, so that it does not share a queue of the device with
  // streams of lower priority. Streams of one priority share a few queues. If a caller's stream
  // waits for a word, it may block the streams behind it in its queue. The word may depend on one
  // of those streams.
  CUstream stream = nullptr;
  ENTRAIN_RETURN_IF_ERROR(Within([&] {
    int lowest = 0, highest = 0;
    const absl::Status known =
        ENTRAIN_CUDA(driver_, cuCtxGetStreamPriorityRange, &lowest, &highest);
    return known.ok() ? ENTRAIN_CUDA(driver_, cuStreamCreateWithPriority, &stream,
                                     CU_STREAM_NON_BLOCKING, highest)
                      : known;
  }));
  return stream;
}

void CudaDevice::DestroyStream(StreamHandle stream) {
  if (stream != nullptr) {
    Release([&] { return ENTRAIN_CUDA(driver_, cuStreamDestroy_v2, Stream(stream)); });
  }
}

absl::Status CudaDevice::Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) {
  if (bytes == 0 || dst == src) {
    return CheckNotForked();
  }
  return Within([&] {
    return ENTRAIN_CUDA(driver_, cuMemcpyAsync, Address(dst), Address(src),
                        static_cast<size_t>(bytes), Stream(stream));
  });
}

absl::Status CudaDevice::Fill(void* dst, uint8_t value, int64_t bytes, StreamHandle stream) {
  if (bytes == 0) {
    return CheckNotForked();
  }
  return Within([&] {
    return ENTRAIN_CUDA(driver_, cuMemsetD8Async, Address(dst), value, static_cast<size_t>(bytes),
                        Stream(stream));
  });
}

absl::Status CudaDevice::AwaitWord(StreamHandle stream, const uint32_t* word, uint32_t at_least) {
  return Within([&]() -> absl::Status {
    const absl::Status status = ENTRAIN_CUDA(driver_, cuStreamWaitValue32_v2, Stream(stream),
                                             Address(word), at_least, CU_STREAM_WAIT_VALUE_GEQ);
    if (!absl::IsUnimplemented(status)) {
      return status;
    }
    auto awaited = std::make_unique<AwaitedWord>(AwaitedWord{word, at_least});
    ENTRAIN_RETURN_IF_ERROR(
        ENTRAIN_CUDA(driver_, cuLaunchHostFunc, Stream(stream), WaitForWord, awaited.get()));
    awaited.release();  // WaitForWord frees it
    return absl::OkStatus();
  });
}

// ---- Events

absl::StatusOr<EventHandle> CudaDevice::CreateEvent() {
  CUevent event = nullptr;
  ENTRAIN_RETURN_IF_ERROR(Within(
      [&] { return ENTRAIN_CUDA(driver_, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING); }));
  return event;
}

void CudaDevice::DestroyEvent(EventHandle event) {
  if (event != nullptr) {
    Release([&] { return ENTRAIN_CUDA(driver_, cuEventDestroy_v2, Event(event)); });
  }
}

absl::Status CudaDevice::Record(EventHandle event, StreamHandle stream) {
  return Within([&] { return ENTRAIN_CUDA(driver_, cuEventRecord, Event(event), Stream(stream)); });
}

absl::StatusOr<bool> CudaDevice::Reached(EventHandle event) {
  bool reached = false;
  ENTRAIN_RETURN_IF_ERROR(Within([&] {
    const CUresult result = driver_.cuEventQuery(Event(event));
    reached = result == CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? absl::OkStatus()
                                          : driver_.Check(result, "cuEventQuery");
  }));
  return reached;
}

absl::Status CudaDevice::AwaitEvent(StreamHandle stream, EventHandle event) {
  return Within([&] {
    return ENTRAIN_CUDA(driver_, cuStreamWaitEvent, Stream(stream), Event(event),
                        CU_EVENT_WAIT_DEFAULT);
  });
}

// ---- Any memory

absl::Status CudaDevice::Attributes(const void* memory, unsigned count,
                                    CUpointer_attribute* attributes, void** values) {
  return Within([&] {
    return ENTRAIN_CUDA(driver_, cuPointerGetAttributes, count, attributes, values,
                        Address(memory));
  });
}

// ---- Kernels

const Kernels& CudaDevice::kernels() const {
  return CudaKernels();
}

absl::Status CudaDevice::Launch(KernelId kernel, const void* args, int blocks,
                                StreamHandle stream) {
  const auto index = static_cast<size_t>(kernel);
  void* parameters[] = {const_cast<void*>(args)};  // NOLINT(google-readability-casting)
  return Within([&] {
    return Annotate(
        ENTRAIN_CUDA(driver_, cuLaunchKernel, functions_[index], static_cast<unsigned>(blocks), 1,
                     1, device_loops::kThreads, 1, 1, 0, Stream(stream), parameters, nullptr),
        kKernelNames[index]);
  });
}

absl::StatusOr<ResultRoom> CudaDevice::TakeRoom() {
  {
    const absl::MutexLock lock(&mutex_);
    if (!late_.empty() && Reached(late_.front().done).value_or(false)) {
      rooms_.push_back(late_.front());
      late_.erase(late_.begin());
    }
    if (!rooms_.empty()) {
      const ResultRoom room = rooms_.back();
      rooms_.pop_back();
      return room;
    }
  }
  ENTRAIN_ASSIGN_OR_RETURN(const EventHandle done, CreateEvent());
  const auto words = AllocatePinned(device_loops::kMostBlocks * int64_t{sizeof(double)});
  if (!words.ok()) {
    DestroyEvent(done);
    return words.status();
  }
  return ResultRoom{static_cast<double*>(*words), done};
}

void CudaDevice::PutBack(ResultRoom room, bool late) {
  const absl::MutexLock lock(&mutex_);
  (late ? late_ : rooms_).push_back(room);
}

}  // namespace entrain
