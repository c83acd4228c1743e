// The contents of ENTRAIN_FAULT: how transports/fault delays or cuts the messages that a process
// sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

struct FaultPlan {
  int64_t bytes_per_second = 0;              // of everything that the process sends; 0: no limit
  int64_t latency_ns = 0;                    // of every message
  int64_t jitter_ns = 0;                     // largest additional delay of a message
  uint64_t seed = 1;                         // of the draws
  int64_t cut_ns = 0;                        // all paths end at this time after the start; 0: never
  std::vector<int> ranks = {};               // the ranks to which it applies; empty: all
  std::vector<std::string> transports = {};  // the transports to which it applies; empty: all

  bool IsFor(int rank) const;
  bool IsFor(absl::string_view transport) const;
};

// Parses "rate=12.5MB/s,latency=200us,jitter=50us,seed=7,cut=30s,ranks=0,3,transports=tcp": any of
// these, each once, and at least one of rate, latency, jitter and cut. An error shows the text and
// the fault in it.
absl::StatusOr<FaultPlan> ParseFaultPlan(absl::string_view text);

}  // namespace entrain
