// What the fake driver knows: devices and their contexts, streams, events. Everything lives for
// ever.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "tests/support/fake_cuda/faults.h"
#include "tests/support/fake_cuda/streams.h"

namespace fake_cuda {

struct FakeDevice {
  int ordinal = 0;
  int retained = 0;
  std::shared_ptr<FakeStream> legacy;  // once retained
};

class DriverState {
 public:
  static DriverState& Get();

  CUresult Init();
  // What every function begins with: an error that was asked for, no cuInit, a fork since, or no
  // context.
  CUresult Enter(const char* function, bool needs_context);

  std::vector<FakeDevice>& devices() { return devices_; }
  Faults& faults() { return faults_; }
  CUresult Retain(int ordinal, CUcontext* out);
  bool IsActive(int ordinal);
  // The calling thread's; null: none.
  FakeDevice* Current();
  CUresult Push(CUcontext context);
  CUresult Pop(CUcontext* out);

  CUresult NewStream(bool blocking, CUstream* out);
  CUresult DropStream(CUstream stream);
  // Of whatever device; null: it is none.
  FakeDevice* DeviceOf(CUstream stream);
  // A stream of the current device, null and CU_STREAM_LEGACY being its default one; null: it is
  // none.
  std::shared_ptr<FakeStream> StreamOf(CUstream stream);
  // In the stream's order, which the default stream is part of.
  void Enqueue(const std::shared_ptr<FakeStream>& stream, std::function<void()> run,
               std::vector<Mark> after = {});
  // Waits for all streams of the current device.
  void Drain(const char* why);

  CUresult NewEvent(CUevent* out);
  CUresult DropEvent(CUevent event);
  CUresult Record(CUevent event, const std::shared_ptr<FakeStream>& stream);
  CUresult MarkOf(CUevent event, Mark* out);
  // How many streams, or events, have not been destroyed.
  int Live(bool streams);

  // After an operation has failed, everything does, as after an illegal address on a device.
  void Break(CUresult why) { broken_.store(why); }
  CUresult broken() const { return broken_.load(); }

 private:
  std::mutex mutex_;
  std::vector<FakeDevice> devices_;
  std::map<CUstream, std::shared_ptr<FakeStream>> streams_;
  std::map<CUevent, Mark> events_;
  uintptr_t last_event_ = 0x1000;
  std::atomic<int> pid_{0};
  std::atomic<CUresult> broken_{CUDA_SUCCESS};
  Faults faults_;
};

}  // namespace fake_cuda
