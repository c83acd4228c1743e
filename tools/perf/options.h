// What entrain-perf was asked to do. `entrain-perf --help` says what each means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tools/perf/measured_case.h"

namespace entrain::perf {

struct Options {
  Case like;  // everything but the size
  int64_t min_bytes = 8, max_bytes = 64 << 20;
  int factor = 4;
  // Each is measured on its own; "" stands for the library's choice.
  std::vector<std::string> transports{""}, algorithms{""};
  double budget_s = 0.15;
  // Of the buffers. kShared and kHuge: of entrain_mem_alloc; kRegistered: private, and registered.
  enum class Memory { kPrivate, kShared, kHuge, kRegistered, kDevice };
  Memory memory = Memory::kPrivate;
  std::string json;
  std::string tune;  // the file to write; empty: measure `like`
  bool append = false, explain = false, list = false;
  int local_ranks = 0;  // 0: a launcher has started the ranks
  std::optional<bool> pin;

  // Set by entrain-perf for the ranks that it starts itself.
  int local_rank = -1;
  std::string local_store;
};

// The exit code when there is nothing left to do: after --help, and after printing what is wrong.
std::optional<int> ParseOptions(int argc, char** argv, Options* options);

}  // namespace entrain::perf
