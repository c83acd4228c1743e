// Merges the flight dumps of the ranks of a job into one page that names the culprit: the rank for
// which the others wait. docs/flight.md has the rules.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace entrain::perf {

struct FlightFile {
  std::string name, text;
};

struct FlightPage {
  std::string text;
  std::string json;  // the page as one JSON object
};

// Returns the page. INVALID_ARGUMENT names a file that is no flight dump.
absl::StatusOr<FlightPage> MergeFlights(const std::vector<FlightFile>& files);

}  // namespace entrain::perf
