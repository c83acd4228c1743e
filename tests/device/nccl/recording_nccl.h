// A table of NCCL's functions that only records its calls, and a device that only records its
// calls. The records show, argument by argument, the NCCL calls that the adapter makes for a call.
// Only one test at a time may use them.
#pragma once

#include <string>
#include <vector>

#include "lib/device/device.h"
#include "lib/device/nccl/nccl_functions.h"

namespace entrain::nccl {

struct Recorded {
  std::vector<std::string> lines;  // "AllReduce 1000 2000 4 f32 sum"; addresses in hexadecimal
  int entered = 0;                 // Enter without Leave
  bool outside = false;            // NCCL was called without the device
  // Results that the functions return.
  Result init = kInProgress, async = kSuccess, call = kSuccess, destroy = kSuccess;
  int polls_in_progress = 0;  // number of queries answered with kInProgress
  int communicators = 0;      // neither destroyed nor aborted
};

// Starts a new recording and ends the previous one.
Recorded& StartRecording();
Functions RecordingFunctions();

// Memory is an address that must not be dereferenced.
class RecordingDevice final : public Device {
 public:
  int ordinal() const override { return 0; }
  const std::string& name() const override { return name_; }
  const std::array<uint8_t, 16>& uuid() const override { return uuid_; }
  absl::Status Enter() override;
  void Leave() override;
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(void* memory) override { Free(memory); }
  absl::StatusOr<StreamHandle> CreateStream() override { return StreamHandle{}; }
  void DestroyStream(StreamHandle) override {}
  absl::Status Copy(void* dst, const void* src, int64_t bytes, StreamHandle stream) override;
  absl::Status Fill(void*, uint8_t, int64_t, StreamHandle) override { return absl::OkStatus(); }
  absl::Status AwaitWord(StreamHandle, const uint32_t*, uint32_t) override {
    return absl::OkStatus();
  }
  absl::StatusOr<EventHandle> CreateEvent() override { return EventHandle{}; }
  void DestroyEvent(EventHandle) override {}
  absl::Status Record(EventHandle event, StreamHandle stream) override;
  absl::StatusOr<bool> Reached(EventHandle) override { return true; }
  absl::Status AwaitEvent(StreamHandle stream, EventHandle event) override;
  const Kernels& kernels() const override;

 private:
  const std::string name_ = "recording";
  const std::array<uint8_t, 16> uuid_{};
};

}  // namespace entrain::nccl
