// Waits until an offloaded call is on its stream, or until all ranks have joined.
#pragma once

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/device/device.h"
#include "lib/device/offload.h"

namespace entrain {

inline absl::Status AwaitBegun(Offload& offload, Deadline give_up = Deadline::After(20 * kSecond)) {
  const int64_t since = Clock::Real().Now();
  for (;;) {
    const auto begun = offload.Begun();
    if (!begun.ok() || *begun) {
      return begun.status();
    }
    const int64_t now = Clock::Real().Now();
    if (give_up.Passed(now)) {
      return absl::DeadlineExceededError("it has not begun");
    }
    PauseAfter(now - since);
  }
}

}  // namespace entrain
