// Calls on device memory, of one communicator. A call gets its numbers where it is started, as many as it may need, on
// every rank alike; what the hosts exchange for it are parts of it, ordinary calls on host memory under these numbers
// (as in packed_call.h). Four ways, chosen from what all ranks know alike:
//
//   offloaded     a library does the whole collective (NCCL): enqueued, and watched (offload_way.cc)
//   node groups   the library inside each host, the hosts' transports between them (node_groups_way.cc)
//   direct        the ranks share a host: each opens the others' memory and reads it with kernels of its own
//                 (direct_way.cc)
//   staged        through page-locked memory, piece by piece, copies and wire overlapped; for everything
//                 (staged_way.cc)
//
// The first untagged collective begins with a meeting (meeting.cc), where ranks find out which of the first three
// they all can. Tagged calls, send and recv are always staged.
//
// Streams. A call begins when the device has come to where the stream was at its start; what follows on the stream waits
// until the call is over, also when it failed. The host waits for neither; where it does, in a blocking call, nothing needs
// to wait on the stream.
//
// Threads. One a communicator that has calls on device memory, the runner: it looks after all that are under way, and
// waits for none of them alone. It sleeps when there are none.
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
  // `device`: null where the call has no buffers here; then that of the stream, on which the communicator is from then on.
  absl::Status EnsureSide(Device* device, StreamHandle stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(starting_);
  // Whether a call that starts now may be offloaded where it starts.
  bool AllSettled() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool NoneOpen() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // One look at each; true: something was done.
  bool Look() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<CommCore> core_;
  Devices& devices_;
  const DeviceWays ways_;
  // Who starts a call may have to wait for the device, and so for calls before: the runner goes on without this one.
  absl::Mutex starting_;
  std::unique_ptr<DeviceSide> side_ ABSL_GUARDED_BY(starting_);
  bool meeting_ordered_ ABSL_GUARDED_BY(starting_) = false;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(starting_);
  // In the order of their start.
  std::deque<RefPtr<DeviceCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;  // how many
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread runner_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
