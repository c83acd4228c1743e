// Settings: the table of environment variables, typed reading of these variables, and the copying
// of size-first structs across the ABI. Only this unit reads the environment.
//
// Precedence, highest first: the call, the config struct, ENTRAIN_* variables, the launcher's
// variables, the default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace entrain {

// One ENTRAIN_* variable. docs/settings.md has the same table, and a test compares the two.
struct EnvVariable {
  const char* name;     // "ENTRAIN_STORE"
  const char* values;   // the accepted values
  const char* meaning;  // one sentence
};
absl::Span<const EnvVariable> EnvTable();

// Refuses ENTRAIN_* variables that are not in the table, since a misspelt setting must not be
// silently ignored.
absl::Status CheckEnvironment();
// Sets the threshold of lib/base/log to ENTRAIN_LOG, if it is set. Refuses a text that is not a
// level.
absl::Status ApplyLogLevel();

// Returns the value of any variable, ours or a launcher's, or nullopt if it is unset or empty. An
// ENTRAIN_* name must be in the table.
std::optional<std::string> GetEnv(const char* name);
// Returns the variable's value as an integer. An error names the variable and its value.
absl::StatusOr<std::optional<int64_t>> GetEnvInt(const char* name);

// Parses a number followed by one of `units`, such as "1.5MB/s". Returns the number times the
// unit's factor, rounded down. The error message says that the text is not `what`.
struct NamedUnit {
  absl::string_view name;
  double factor;
};
absl::StatusOr<int64_t> ParseUnits(absl::string_view text, absl::Span<const NamedUnit> units,
                                   absl::string_view what);
// Parses "64", "64K", "1.5M", "2G" (factor 1024). Returns bytes.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);
// Parses "250ms", "30s", "5m", "2h". Returns nanoseconds, more than 0. A number without a unit is
// seconds.
absl::StatusOr<int64_t> ParseDuration(absl::string_view text);

// Copies a caller's size-first struct over `known`, which holds the defaults. Copies the first
// min(size, known_size) bytes. Accepts a longer struct only if its unknown tail is zero. Refuses
// null and size 0 (the caller did not initialise the struct). Refuses sizes that are not a multiple
// of 8: no struct of the ABI has such a size, so a field would be cut. Messages name the struct by
// `name`.
absl::Status CopyStruct(const void* from, void* known, size_t known_size, const char* name);

}  // namespace entrain
