// One communicator's calls on device memory. When a call is started, it takes a range of sequence
// numbers: as many numbers as it may need. Every rank takes the same range. A call may consist of
// parts. A part is an ordinary call on host memory that has one of these numbers (as in
// packed_call.h). There are two methods for a call. The choice depends on values that are equal on
// all ranks:
//
//   offloaded     A library (NCCL) does the whole collective. The runner enqueues the collective
//                 and then polls it (offload_way.cc).
//   staged        The data goes through page-locked memory, piece by piece. Copies and transfers
//                 overlap. This method can do every call (staged_way.cc).
//
// The first untagged collective begins with a meeting (meeting.cc). In the meeting the ranks find
// out whether all of them can join the library. Tagged calls, send and recv are always staged.
//
// Streams. A call begins when the device has finished the work that was on the caller's stream when
// the call was started. Later work on the stream waits until the call is over, even if the call
// fails. The thread that starts the call waits neither for its beginning nor for its end. A
// blocking call is different: the thread waits for the end of the call, so the stream does not.
//
// Threads. Each communicator with calls on device memory has one thread, the runner. The runner
// polls all calls under way and never blocks on a call. If there are no calls, it sleeps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "lib/base/call.h"
#include "lib/comm/device_calls.h"
#include "lib/device/calls/device_side.h"
#include "lib/device/device.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;
class DeviceCall;

class DeviceRunner final : public DeviceCalls {
 public:
  // `library`: as in DeviceSide::Open.
  DeviceRunner(std::shared_ptr<CommCore> core, Devices& devices, OffloadLibrary* library);
  ~DeviceRunner() override;

  absl::StatusOr<RefPtr<Work>> Start(Call call, bool blocks) override
      ABSL_LOCKS_EXCLUDED(starting_, mutex_);
  std::vector<RefPtr<Work>> open() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Device*> DeviceOf(const Call& call) const;
  // Creates side_ at the first call. If the call has no buffers on this rank, `device` is null, and
  // the function takes the device of `stream`. All later calls of the communicator must use the
  // same device.
  absl::Status EnsureSide(Device* device, StreamHandle stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(starting_);
  // Returns true if a call that starts now may be offloaded by the thread that starts it.
  bool AllSettled() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls each call once. Returns true if any call made a step.
  bool Look() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<CommCore> core_;
  Devices& devices_;
  OffloadLibrary* const library_;
  // Held by a thread that starts a call. This thread may wait for the device, and so for earlier
  // calls. The runner finishes the earlier calls, so it must never take this mutex.
  absl::Mutex starting_;
  std::unique_ptr<DeviceSide> side_ ABSL_GUARDED_BY(starting_);
  bool meeting_ordered_ ABSL_GUARDED_BY(starting_) = false;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(starting_);
  // Calls in the order of their start.
  std::deque<RefPtr<DeviceCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;  // number of calls started
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread runner_ ABSL_GUARDED_BY(mutex_);
};

// The factory of calls on device memory in this build, for RuntimeOptions::device_calls.
#if !defined(ENTRAIN_HAVE_DEVICE)
#error "link with entrain_device_side, which says whether the build has the device side"
#elif ENTRAIN_HAVE_DEVICE
absl::StatusOr<std::unique_ptr<DeviceCalls>> MakeDeviceCalls(
    std::shared_ptr<CommCore> core, absl::Span<const std::string> transports);
inline constexpr DeviceCallsFactory kDeviceCalls = MakeDeviceCalls;
#else
// The build has no device side (ENTRAIN_DEVICE).
inline constexpr DeviceCallsFactory kDeviceCalls = nullptr;
#endif

}  // namespace entrain
