// The seeds that a simulation runs, from the environment:
//   ENTRAIN_SIMULATION_FIRST   the first seed (default 1)
//   ENTRAIN_SIMULATION_SEEDS   the number of seeds (default: chosen by the test)
//   ENTRAIN_SIMULATION_TRACE   1: the test prints all events
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"

namespace entrain {

class Seeds {
 public:
  explicit Seeds(uint64_t usual)
      : first(Given().first.value_or(1)), count(Given().count.value_or(usual)) {}
  // Returns true if the environment selects seeds. A test must then not check counts over all
  // seeds.
  static bool Chosen() { return Given().first || Given().count; }
  static bool Traced() { return Given().trace.value_or(0) != 0; }

  const uint64_t first, count;

 private:
  struct Settings {
    std::optional<uint64_t> first, count, trace;
  };
  static const Settings& Given() {
    static const Settings settings{Take("ENTRAIN_SIMULATION_FIRST"),
                                   Take("ENTRAIN_SIMULATION_SEEDS"),
                                   Take("ENTRAIN_SIMULATION_TRACE")};
    return settings;
  }
  // Returns the value of the variable, and removes the variable, because the library refuses
  // settings that it does not know.
  static std::optional<uint64_t> Take(const char* name) {
    const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    uint64_t value = 0;
    const bool given = text != nullptr && absl::SimpleAtoi(text, &value);
    unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
    return given ? std::optional<uint64_t>(value) : std::nullopt;
  }
};

}  // namespace entrain
