// The options of entrain-perf. `entrain-perf --help` explains each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tools/perf/measured_case.h"

namespace entrain::perf {

struct Options {
  Case like;  // all fields but the size
  int64_t min_bytes = 8, max_bytes = 64 << 20;
  int factor = 4;
  // Each transport and algorithm is measured separately; "" stands for the library's choice.
  std::vector<std::string> transports{""}, algorithms{""};
  double budget_s = 0.15;
  // The memory of the buffers. kShared and kHuge: entrain_mem_alloc. kRegistered: private, then
  // registered.
  enum class Memory { kPrivate, kShared, kHuge, kRegistered, kDevice };
  Memory memory = Memory::kPrivate;
  std::string json;
  std::string tune;  // the file to write; empty: measure `like`
  bool append = false, explain = false, list = false;
  // The files to merge, or the process to ask, instead of a measurement.
  std::vector<std::string> flight;
  int64_t flight_of = 0;
  int local_ranks = 0;  // 0: a launcher has started the ranks
  std::optional<bool> pin;

  // entrain-perf sets these for the ranks that it starts itself.
  int local_rank = -1;
  std::string local_store;
};

// Returns the exit code if there is nothing left to do: after --help, or after printing an error.
std::optional<int> ParseOptions(int argc, char** argv, Options* options);

}  // namespace entrain::perf
