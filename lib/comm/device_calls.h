// The interface through which a communicator makes calls on device memory. lib/device/calls
// implements this interface. lib/comm must not depend on lib/device. So the creator of a runtime
// passes a function that makes the implementation (RuntimeOptions::device_calls). No other code of
// lib/comm handles devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/base/call.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;

// One communicator's calls on device memory.
//
// Thread safety: any thread. Close and the destructor are called once, in this order.
class DeviceCalls {
 public:
  virtual ~DeviceCalls() = default;
  // Starts a call whose buffers are on the device options.device. Returns INVALID_ARGUMENT if a
  // buffer is not on this device, or if an earlier call used another device. `blocks`: right after
  // Start, the calling thread waits for the end of the call. In this case Start makes no stream
  // wait for the call.
  virtual absl::StatusOr<RefPtr<Work>> Start(Call call, bool blocks) = 0;
  // Returns the works of the calls that have started and are not over.
  virtual std::vector<RefPtr<Work>> open() const = 0;
  // Blocks until the open calls have failed. Must be called after the communicator has ended, so
  // that these calls fail soon.
  virtual void Close() = 0;
};

// Makes the DeviceCalls of a communicator. Called at the first call on device memory. `transports`:
// the names of the runtime's transports, including the transports for devices. Returns
// UNIMPLEMENTED, with a message that begins with "memory 1", if the process has no device.
using DeviceCallsFactory = absl::StatusOr<std::unique_ptr<DeviceCalls>> (*)(
    std::shared_ptr<CommCore> core, absl::Span<const std::string> transports);

}  // namespace entrain
