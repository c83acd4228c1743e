// The state of the fake driver: devices and their contexts, streams, events. Nothing is ever freed.
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
  // Every function begins with Enter. It returns the error that a test asked for, or one for a
  // missing cuInit, a fork since cuInit, or a missing context.
  CUresult Enter(const char* function, bool needs_context);

  std::vector<FakeDevice>& devices() { return devices_; }
  Faults& faults() { return faults_; }
  CUresult Retain(int ordinal, CUcontext* out);
  bool IsActive(int ordinal);
  // Returns the calling thread's device, or null if the thread has none.
  FakeDevice* Current();
  CUresult Push(CUcontext context);
  CUresult Pop(CUcontext* out);

  CUresult NewStream(bool blocking, CUstream* out);
  CUresult DropStream(CUstream stream);
  // Returns the device of the stream, or null if there is no such stream.
  FakeDevice* DeviceOf(CUstream stream);
  // Returns a stream of the current device, or null if there is no such stream. As argument, null
  // and CU_STREAM_LEGACY stand for the default stream.
  std::shared_ptr<FakeStream> StreamOf(CUstream stream);
  // Enqueues in the stream's order, including its order with the default stream.
  void Enqueue(const std::shared_ptr<FakeStream>& stream, std::function<void()> run,
               std::vector<Mark> after = {});
  // Waits for all streams of the current device.
  void Drain(const char* why);

  CUresult NewEvent(CUevent* out);
  CUresult DropEvent(CUevent event);
  CUresult Record(CUevent event, const std::shared_ptr<FakeStream>& stream);
  CUresult MarkOf(CUevent event, Mark* out);
  // Returns the number of streams, or of events, that are not destroyed.
  int Live(bool streams);

  // Must be called when an operation has failed. From then on every function fails, as after an
  // illegal address on a device.
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
