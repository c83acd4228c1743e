// Settings: the one table of environment variables, typed look-ups in it, and copying size-first
// structs across the ABI. The environment is read here and nowhere else.
//
// Order of settings: the call, the config struct, ENTRAIN_* variables, the launcher's variables,
// the default.
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

// One environment variable of ours. docs/settings.md has the same table; a test compares the two.
struct EnvVariable {
  const char* name;     // "ENTRAIN_STORE"
  const char* values;   // what it may hold
  const char* meaning;  // one sentence
};
absl::Span<const EnvVariable> EnvTable();

// Refuses variables named ENTRAIN_* that are not in the table: a misspelt setting must not be
// silently ignored.
absl::Status CheckEnvironment();
// Sets the threshold of lib/base/log to ENTRAIN_LOG, if that is set; refuses what is no level.
absl::Status ApplyLogLevel();

// The value of any variable, ours or a launcher's; nullopt when unset or empty. ENTRAIN_* names
// must be in the table.
std::optional<std::string> GetEnv(const char* name);
// The same as an integer; an error names the variable and its value.
absl::StatusOr<std::optional<int64_t>> GetEnvInt(const char* name);

// A number and one of these units, as "1.5MB/s", to the number times the factor, rounded down. An
// error says that the text is not `what`.
struct NamedUnit {
  absl::string_view name;
  double factor;
};
absl::StatusOr<int64_t> ParseUnits(absl::string_view text, absl::Span<const NamedUnit> units,
                                   absl::string_view what);
// "64", "64K", "1.5M", "2G" (1024), to bytes.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);
// "250ms", "30s", "5m", "2h"; a bare number is seconds. To nanoseconds, > 0.
absl::StatusOr<int64_t> ParseDuration(absl::string_view text);

// Copies a caller's size-first struct over `known` (which holds the defaults): the first min(size,
// known_size) bytes are taken, a longer struct is accepted only when its unknown tail is zero.
// `name` is for messages. Refuses null, size 0 (never initialised), sizes that are no multiple of 8
// (no struct of the ABI has such a size: one would cut a field), and unknown non-zero tails.
absl::Status CopyStruct(const void* from, void* known, size_t known_size, const char* name);

}  // namespace entrain
