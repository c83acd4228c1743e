#include "lib/device/cuda/cuda_devices.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <pthread.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/status.h"
#include "lib/device/cuda/cuda_device.h"

namespace entrain {
namespace {

// Relaxed order is sufficient: a child has only the thread that forked.
std::atomic<bool> forked{false};

class CudaDevices final : public Devices {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevices>> Find() {
    const int error = pthread_atfork(
        nullptr, nullptr, +[] { forked.store(true, std::memory_order_relaxed); });
    if (error != 0) {
      return ErrnoStatus(error, "pthread_atfork");
    }
    ENTRAIN_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
    int count = 0;
    ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(*driver, cuDeviceGetCount, &count));
    if (count == 0) {
      return absl::UnavailableError("the CUDA driver sees no device");
    }
    return std::unique_ptr<CudaDevices>(new CudaDevices(*driver, count));
  }

  int count() const override { return count_; }

  absl::StatusOr<Device*> At(int ordinal) override {
    ENTRAIN_RETURN_IF_ERROR(CheckNotForked());
    if (ordinal < 0 || ordinal >= count_) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", ordinal, ": this process sees ", count_, " CUDA devices"));
    }
    return DeviceAt(ordinal);
  }

  // Managed memory counts as device memory, because the host may read it only while no kernel runs.
  absl::StatusOr<Place> PlaceOf(const void* memory) override {
    ENTRAIN_RETURN_IF_ERROR(CheckNotForked());
    unsigned type = 0;
    int ordinal = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* values[] = {&type, &ordinal};
    // For memory that the driver does not know, the function succeeds and leaves zeros.
    const CUresult result = driver_.cuPointerGetAttributes(2, attributes, values,
                                                           reinterpret_cast<CUdeviceptr>(memory));
    absl::Status known = driver_.Check(result, "cuPointerGetAttributes");
    if (result == CUDA_ERROR_INVALID_CONTEXT) {
      // Some drivers answer only if a context is current. If no primary context is active, there is
      // no device memory.
      ENTRAIN_ASSIGN_OR_RETURN(CudaDevice* const device, ActiveDevice());
      known =
          device == nullptr ? absl::OkStatus() : device->Attributes(memory, 2, attributes, values);
    }
    if (result == CUDA_ERROR_INVALID_VALUE || (known.ok() && type == 0)) {
      return Place{};
    }
    ENTRAIN_RETURN_IF_ERROR(known);
    Place place;
    place.kind = type == CU_MEMORYTYPE_HOST ? MemoryKind::kHostPinned : MemoryKind::kDevice;
    ENTRAIN_ASSIGN_OR_RETURN(place.device, At(ordinal));
    return place;
  }

  // Determines the device from the stream's context, so that no context of another device is
  // created. A thread without a context uses the first device, as in the CUDA runtime.
  absl::StatusOr<Device*> OfStream(StreamHandle stream) override {
    ENTRAIN_RETURN_IF_ERROR(CheckNotForked());
    auto* const handle = static_cast<CUstream>(stream);
    CUcontext context = nullptr;
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
      ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuCtxGetCurrent, &context));
      if (context == nullptr) {
        return At(0);
      }
    } else {
      ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuStreamGetCtx, handle, &context));
    }
    CUdevice on = 0;
    ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuCtxPushCurrent_v2, context));
    absl::Status known = ENTRAIN_CUDA(driver_, cuCtxGetDevice, &on);
    known.Update(ENTRAIN_CUDA(driver_, cuCtxPopCurrent_v2, &context));
    ENTRAIN_RETURN_IF_ERROR(known);
    for (int ordinal = 0; ordinal < count_; ++ordinal) {
      CUdevice device = 0;
      ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGet, &device, ordinal));
      if (device == on) {
        return At(ordinal);
      }
    }
    return absl::InvalidArgumentError("it is on none of the devices that this process sees");
  }

 private:
  absl::StatusOr<CudaDevice*> DeviceAt(int ordinal) {
    const absl::MutexLock lock(&mutex_);
    std::unique_ptr<CudaDevice>& device = devices_[static_cast<size_t>(ordinal)];
    if (device == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(device, CudaDevice::Create(driver_, ordinal));
    }
    return device.get();
  }

  // Returns the first device whose primary context is in use, or null.
  absl::StatusOr<CudaDevice*> ActiveDevice() {
    for (int ordinal = 0; ordinal < count_; ++ordinal) {
      CUdevice device = 0;
      unsigned flags = 0;
      int active = 0;
      ENTRAIN_RETURN_IF_ERROR(ENTRAIN_CUDA(driver_, cuDeviceGet, &device, ordinal));
      ENTRAIN_RETURN_IF_ERROR(
          ENTRAIN_CUDA(driver_, cuDevicePrimaryCtxGetState, device, &flags, &active));
      if (active != 0) {
        return DeviceAt(ordinal);
      }
    }
    return static_cast<CudaDevice*>(nullptr);
  }

  CudaDevices(const CudaDriver& driver, int count)
      : driver_(driver), count_(count), devices_(static_cast<size_t>(count)) {}

  const CudaDriver& driver_;
  const int count_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<CudaDevice>> devices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status CheckNotForked() {
  return forked.load(std::memory_order_relaxed)
             ? absl::FailedPreconditionError(
                   "this process was forked from one that used CUDA, which does not survive that")
             : absl::OkStatus();
}

bool CudaIsInUse() {
  return CudaDriver::IsInUse();
}

absl::StatusOr<Devices*> OpenCudaDevices() {
  static const auto* const devices =
      new absl::StatusOr<std::unique_ptr<CudaDevices>>(CudaDevices::Find());
  ENTRAIN_RETURN_IF_ERROR(CheckNotForked());
  if (!devices->ok()) {
    return devices->status();
  }
  return devices->value().get();
}

}  // namespace entrain
