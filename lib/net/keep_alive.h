// TCP keep-alive. It detects that the other host has vanished (cable out, power off) and so cannot
// close the connection. The kernel of the other host answers the probes, even if the process there
// does nothing.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

// While a connection is idle, this host's kernel probes the other host's kernel every
// `interval_ns`. The connection fails after `limit_ns` without an answer, or at most one interval
// later.
struct KeepAlive {
  int64_t limit_ns = 8 * kSecond, interval_ns = 2 * kSecond;
};

// Parses ENTRAIN_KEEPALIVE: "LIMIT" or "LIMIT/INTERVAL". Both are durations. Empty: the default.
// INTERVAL must be at least 1 s and at most LIMIT. If it is missing, it is a quarter of LIMIT, but
// at least 1 s. The kernel counts INTERVAL in whole seconds.
absl::StatusOr<KeepAlive> ParseKeepAlive(absl::string_view text);
// Returns the environment's setting, or the default if the setting is malformed. (The runtime
// refuses a malformed setting.)
KeepAlive KeepAliveSetting();

// Makes the kernel probe the connection while it is idle. While sent data is not acknowledged, the
// kernel sends no probes, and ends the connection much later.
void ProbeWhenIdle(int fd, const KeepAlive& keep_alive);
// Does the same as ProbeWhenIdle. Also, the connection fails if sent data is not acknowledged
// within the limit. Must not be used if the reader may be slow, because the kernel cannot
// distinguish a full receive window from a host that is gone.
void ProbeAlways(int fd, const KeepAlive& keep_alive);

}  // namespace entrain
