// Notices that the host of the other end has vanished (cable out, power off) and can no longer
// close the connection. The kernel of that host answers the probes, whatever the process there
// does.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

// While a connection is idle, the other kernel is probed every `interval_ns`. The host counts as
// gone after `limit_ns` without an answer, and this is noticed at most one interval later.
struct KeepAlive {
  int64_t limit_ns = 8 * kSecond, interval_ns = 2 * kSecond;
};

// Parses ENTRAIN_KEEPALIVE: "LIMIT" or "LIMIT/INTERVAL", which are durations; empty: the default.
// INTERVAL is by default a quarter of LIMIT, but at least 1 s. It must be at least 1 s and at most
// LIMIT. The kernel counts it in whole seconds.
absl::StatusOr<KeepAlive> ParseKeepAlive(absl::string_view text);
// Returns the environment's setting, or the default if the setting is malformed (the runtime
// refuses a malformed one).
KeepAlive KeepAliveSetting();

// Sends probes only while nothing else is sent. Unacknowledged data ends the connection much later.
void ProbeWhenIdle(int fd, const KeepAlive& keep_alive);
// Probes as ProbeWhenIdle does, and requires that sent data is acknowledged within the limit. Not
// for connections whose reader may be slow: the kernel cannot distinguish a host that is gone from
// a process that does not read while its window is full.
void ProbeAlways(int fd, const KeepAlive& keep_alive);

}  // namespace entrain
