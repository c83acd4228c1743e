// One CUDA device. The object uses the device's primary context, like all users of the CUDA runtime
// in the process. Every function makes this context current, and restores the caller's context
// before it returns.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/device/cuda/driver.h"
#include "lib/device/cuda/kernel_list.h"
#include "lib/device/device.h"

namespace entrain {

// Returns FAILED_PRECONDITION in a child that was forked after the driver was loaded.
absl::Status CheckNotForked();

// Page-locked memory for the results of a kernel, one word a block, and the event that marks the
// kernel's end. Used by one call at a time.
struct ResultRoom {
  double* words = nullptr;
  EventHandle done = nullptr;
};

class CudaDevice final : public Device {
 public:
  // Retains the primary context for ever. Loads all kernels now, because a later load could wait
  // for a stream that waits for the host.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaDriver& driver, int ordinal);

  int ordinal() const override { return ordinal_; }
  const std::string& name() const override { return name_; }
  const std::array<uint8_t, 16>& uuid() const override { return uuid_; }

  absl::Status Enter() override;
  void Leave() override;

  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  void FreePinned(void* memory) override;

  absl::StatusOr<StreamHandle> CreateStream() override;
  void DestroyStream(StreamHandle stream) override;
  absl::Status Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) override;
  absl::Status Fill(void* dst, uint8_t value, int64_t bytes, StreamHandle stream) override;
  absl::Status AwaitWord(StreamHandle stream, const uint32_t* word, uint32_t at_least) override;

  absl::StatusOr<EventHandle> CreateEvent() override;
  void DestroyEvent(EventHandle event) override;
  absl::Status Record(EventHandle event, StreamHandle stream) override;
  absl::StatusOr<bool> Reached(EventHandle event) override;
  absl::Status AwaitEvent(StreamHandle stream, EventHandle event) override;

  const Kernels& kernels() const override;

  // ---- For cuda_devices.cc: calls cuPointerGetAttributes with this device's context current.
  absl::Status Attributes(const void* memory, unsigned count, CUpointer_attribute* attributes,
                          void** values);

  // ---- For cuda_kernels.cc and launch.cc.
  int processors() const { return processors_; }
  // `args` points to the kernel's arguments. Launch copies them before it returns.
  absl::Status Launch(KernelId kernel, const void* args, int blocks, StreamHandle stream);
  absl::StatusOr<ResultRoom> TakeRoom();
  // `late`: the device may still write to the room until the room's event is reached.
  void PutBack(ResultRoom room, bool late = false);

 private:
  CudaDevice(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  absl::Status Prepare();
  absl::Status LoadKernels();
  // Runs f, which returns a Status, with the context current.
  template <typename F>
  absl::Status Within(F f);
  // Runs f with the context current. An error is logged and not returned.
  template <typename F>
  void Release(F f);

  const CudaDriver& driver_;
  const int ordinal_;
  CUcontext context_ = nullptr;
  std::string name_;
  std::array<uint8_t, 16> uuid_{};
  int processors_ = 0;
  std::array<CUfunction, kKernelCount> functions_{};

  absl::Mutex mutex_;
  std::vector<ResultRoom> rooms_ ABSL_GUARDED_BY(mutex_), late_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
