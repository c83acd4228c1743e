// Noticing that the other end's host has vanished (its cable is out, its power is off), so that nobody is left to say
// so. Its kernel is asked and answers, whatever its process does meanwhile.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"

namespace entrain {

// While nothing is said, the other kernel is asked every `interval_ns`; it is gone when it has been silent for
// `limit_ns`, which is noticed one interval later at the latest.
struct KeepAlive {
  int64_t limit_ns = 8 * kSecond, interval_ns = 2 * kSecond;
};

// ENTRAIN_KEEPALIVE: "LIMIT" or "LIMIT/INTERVAL", durations; empty: the default. INTERVAL is a quarter of LIMIT unless
// it is given, at least 1 s and at most LIMIT. The kernel counts it in whole seconds.
absl::StatusOr<KeepAlive> ParseKeepAlive(absl::string_view text);
// What the environment says; the default if that cannot be understood (the runtime refuses it).
KeepAlive KeepAliveSetting();

// Asks while nothing is sent. What was sent and stays unacknowledged ends the connection much later.
void ProbeWhenIdle(int fd, const KeepAlive& keep_alive);
// The same, and what was sent must be acknowledged within the limit. Not for connections whose reader may be slow: the
// kernel cannot tell a host that is gone from a process that reads nothing while its window is full.
void ProbeAlways(int fd, const KeepAlive& keep_alive);

}  // namespace entrain
