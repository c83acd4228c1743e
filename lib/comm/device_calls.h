// The interface through which a communicator makes calls on device memory. lib/device/calls, which
// is above this folder, implements it. A runtime is given the function that makes the
// implementation (RuntimeOptions::device_calls). Nothing else in lib/comm knows of devices.
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

// The calls on device memory of one communicator.
//
// Thread safety: any thread. Close and the destructor are called once, in this order.
class DeviceCalls {
 public:
  virtual ~DeviceCalls() = default;
  // Starts a call. options.device says on which device its buffers are. INVALID_ARGUMENT if a
  // buffer is not on this device, or if the device is not that of the first call. `blocks`: the
  // caller waits for the end at once, so the call holds no stream.
  virtual absl::StatusOr<RefPtr<Work>> Start(Call call, bool blocks) = 0;
  // Allocates the page-locked and other memory for `at_once` calls of this size or smaller that are
  // under way together, so that starting them allocates none. Sends nothing.
  virtual absl::Status Reserve(const Call& call, int at_once) = 0;
  // Returns the works that are started and not over.
  virtual std::vector<RefPtr<Work>> open() const = 0;
  // Called after the communicator has ended. Blocks until the calls under way have failed, which
  // they do soon.
  virtual void Close() = 0;
};

// Makes the DeviceCalls of a communicator, at its first call on device memory. `transports`: the
// names that the runtime was given, including those for devices. Returns UNIMPLEMENTED, beginning
// with "memory 1", if the process has no device.
using DeviceCallsFactory = absl::StatusOr<std::unique_ptr<DeviceCalls>> (*)(
    std::shared_ptr<CommCore> core, absl::Span<const std::string> transports);

}  // namespace entrain
