// TCP keep-alive: notices that the host of the other end has vanished (cable out, power off)
// without closing the connection. The kernel of the other host answers the probes, even if the
// process there does nothing.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

// While a connection is idle, this kernel probes the other kernel every `interval_ns`. The
// connection fails after `limit_ns` without an answer, or at most one interval later.
struct KeepAlive {
  int64_t limit_ns = 8 * kSecond, interval_ns = 2 * kSecond;
};

// Parses ENTRAIN_KEEPALIVE: "LIMIT" or "LIMIT/INTERVAL", where both are durations; empty: the
// default. INTERVAL is by default a quarter of LIMIT, but at least 1 s. It must be at least 1 s and
// at most LIMIT. The kernel counts it in whole seconds.
absl::StatusOr<KeepAlive> ParseKeepAlive(absl::string_view text);
// Returns the environment's setting, or the default if the setting is malformed. (The runtime
// refuses a malformed setting.)
KeepAlive KeepAliveSetting();

// Sends probes only while nothing else is sent. While sent data is not acknowledged, there are no
// probes, and the kernel ends the connection much later.
void ProbeWhenIdle(int fd, const KeepAlive& keep_alive);
// Probes as ProbeWhenIdle does, and requires that sent data is acknowledged within the limit. Not
// for connections whose reader may be slow. If a process does not read and its receive window is
// full, the kernel cannot distinguish this from a host that is gone.
void ProbeAlways(int fd, const KeepAlive& keep_alive);

}  // namespace entrain
