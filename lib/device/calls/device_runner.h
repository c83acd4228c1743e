// One communicator's calls on device memory. When a call is started, it takes a range of sequence
// numbers: as many numbers as it may need. Every rank takes the same range. The hosts exchange the
// data of the call in parts. Each part is an ordinary call on host memory with one of these numbers
// (as in packed_call.h). There are four methods for a call. The choice depends on values that are
// equal on all ranks:
//
//   offloaded     a library (NCCL) does the whole collective; the runner enqueues the collective
//                 and then polls it (offload_way.cc)
//   node groups   the library inside each host, the hosts' transports between them
//                 (node_groups_way.cc)
//   direct        the ranks share a host: each opens the others' memory and reads it with kernels
//                 of its own (direct_way.cc)
//   staged        through page-locked memory, piece by piece, copies and transfers overlapped;
//                 serves every call (staged_way.cc)
//
// The first untagged collective begins with a meeting (meeting.cc), in which the ranks determine
// which of the first three methods are possible on all of them. Tagged calls, send and recv are
// always staged.
//
// Streams. A call begins when the device has finished the work that was on the caller's stream when
// the call was started. Later work on the stream waits until the call is over, also if the call
// failed. The host waits neither for the beginning nor for the end of the call. Only a blocking
// call makes the host wait for the end, so that no work on the stream needs to wait.
//
// Threads. Each communicator with calls on device memory has one thread, the runner. The runner
// polls all calls under way and never blocks on one of them. If there are no calls, it sleeps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

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
  DeviceRunner(std::shared_ptr<CommCore> core, Devices& devices, const DeviceWays& ways);
  ~DeviceRunner() override;

  absl::StatusOr<RefPtr<Work>> Start(Call call, bool blocks) override
      ABSL_LOCKS_EXCLUDED(starting_, mutex_);
  absl::Status Reserve(const Call& call, int at_once) override
      ABSL_LOCKS_EXCLUDED(starting_, mutex_);
  std::vector<RefPtr<Work>> open() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Device*> DeviceOf(const Call& call) const;
  // If the call has no buffers on this rank, `device` is null, and the device is that of the
  // stream. The communicator uses this device from then on.
  absl::Status EnsureSide(Device* device, StreamHandle stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(starting_);
  // Returns true if a call that starts now may be offloaded by the thread that starts it.
  bool AllSettled() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool NoneOpen() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls each call once. Returns true if any call made a step.
  bool Look() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<CommCore> core_;
  Devices& devices_;
  const DeviceWays ways_;
  // A thread that starts a call holds this mutex, and may have to wait for the device, that is, for
  // earlier calls. So the runner, which finishes the earlier calls, never takes this mutex.
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

}  // namespace entrain
