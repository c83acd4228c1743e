// The settings of the transports: ENTRAIN_TRANSPORTS and ENTRAIN_FAULT.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

// The names of the transports of this version, in order of preference (registry.h).
inline constexpr const char* kTransportNames[] = {"inproc", "shm", "ucx", "tcp"};

// Parses a text like "shm,tcp". Returns a list of names. Each name must be known, and must appear
// only once. An empty text means all transports. The order in the text has no effect, because the
// order of preference is fixed.
absl::StatusOr<std::vector<std::string>> ParseTransports(absl::string_view text);

// The parsed ENTRAIN_FAULT. It says how transports/fault delays the messages that a process sends,
// and when it ends the paths.
struct FaultPlan {
  int64_t bytes_per_second = 0;  // rate at which the process sends; 0: no limit
  int64_t latency_ns = 0;        // delay of each message
  int64_t jitter_ns = 0;         // largest additional delay of a message
  uint64_t seed = 1;             // seed of the random delays
  // time from the start until all paths end; 0: they never end
  int64_t cut_ns = 0;
  std::vector<int> ranks = {};               // ranks to which the plan applies; empty: all
  std::vector<std::string> transports = {};  // transports to which the plan applies; empty: all

  bool IsFor(int rank) const;
  bool IsFor(absl::string_view transport) const;
};

// Parses a text like
// "rate=12.5MB/s,latency=200us,jitter=50us,seed=7,cut=30s,ranks=0,3,transports=tcp". Each item may
// appear once. At least one of rate, latency, jitter and cut must appear. An error shows the text
// and the fault in it.
absl::StatusOr<FaultPlan> ParseFaultPlan(absl::string_view text);

}  // namespace entrain
