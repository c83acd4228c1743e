// What a communicator needs of the device side: somebody who makes its calls on device memory. lib/device/calls does,
// above this folder; a runtime is given the function that makes it (RuntimeOptions::device_calls). Nothing else in lib/comm
// knows of devices.
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
// Thread safety: any thread; Close and the destructor once, in this order.
class DeviceCalls {
 public:
  virtual ~DeviceCalls() = default;
  // The call's options.device says where its buffers are; checked: INVALID_ARGUMENT for those that are not, or are on
  // another device than the first call's. `blocks`: the caller waits for the end at once, so the call holds no stream.
  virtual absl::StatusOr<RefPtr<Work>> Start(Call call, bool blocks) = 0;
  // Finds the page-locked and other memory that so many calls like this one, or smaller, need at once, so that starting
  // them allocates none. Sends nothing.
  virtual absl::Status Reserve(const Call& call, int at_once) = 0;
  // Started and not over.
  virtual std::vector<RefPtr<Work>> open() const = 0;
  // Once the communicator has ended: what is under way fails soon. Waits for that.
  virtual void Close() = 0;
};

// Makes those of a communicator, at its first call on device memory. `transports`: the names that the runtime was given, those
// for devices among them. UNIMPLEMENTED, beginning with "memory 1", where the process has no device.
using DeviceCallsFactory = absl::StatusOr<std::unique_ptr<DeviceCalls>> (*)(
    std::shared_ptr<CommCore> core, absl::Span<const std::string> transports);

}  // namespace entrain
