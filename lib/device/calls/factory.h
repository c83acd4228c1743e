// The factory of calls on device memory in this build, for RuntimeOptions::device_calls.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/device_calls.h"

namespace entrain {

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
