// What ENTRAIN_FAULT asks for: how transports/fault holds back, or ends, what a process sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

struct FaultPlan {
  int64_t bytes_per_second = 0;  // of everything that the process sends; 0: as fast as it goes
  int64_t latency_ns = 0;        // of every message
  int64_t jitter_ns = 0;         // every message has up to this much more, drawn evenly
  uint64_t seed = 1;             // of the draws
  int64_t cut_ns = 0;            // all paths end that long after the start; 0: never
  std::vector<int> ranks = {};   // which ranks it is for; empty: all
  std::vector<std::string> transports = {};  // which transports; empty: all

  bool IsFor(int rank) const;
  bool IsFor(absl::string_view transport) const;
};

// "rate=12.5MB/s,latency=200us,jitter=50us,seed=7,cut=30s,ranks=0,3,transports=tcp": any of these,
// each once, and at least one of rate, latency, jitter and cut. An error names what is wrong and
// the text.
absl::StatusOr<FaultPlan> ParseFaultPlan(absl::string_view text);

}  // namespace entrain
