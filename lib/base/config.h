// Settings: the table of environment variables, functions that read the variables, and the copy of
// a caller's struct whose first member is its size. No other file of the library reads the
// environment.
//
// Precedence, highest first: the arguments of the call, the config struct, ENTRAIN_* variables, the
// launcher's variables, the default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

// Returns a sentence for each ENTRAIN_* variable of the environment that is not in the table, with the
// name in the table that is most like it. Otherwise a misspelt setting would silently have no effect.
std::vector<std::string> UnknownVariables();
// Logs these sentences, once in a process. A variable of a newer launcher must not end a job.
void WarnOfUnknownVariables();
// Sets the log threshold (lib/base/log.h) to the value of ENTRAIN_LOG, if the variable is set.
// Returns an error if the value is not a level.
absl::Status ApplyLogLevel();

// Returns the value of a variable of this library or of a launcher. Returns nullopt if the variable
// is unset or empty. A name that begins with ENTRAIN_ must be in the table.
std::optional<std::string> GetEnv(const char* name);
// Returns the variable's value as an integer. An error text contains the name and the value.
absl::StatusOr<std::optional<int64_t>> GetEnvInt(const char* name);

// Parses a number and a unit, such as "1.5MB/s". `units` lists the accepted units. Returns the
// number times the unit's factor, rounded down. The error text is "TEXT is not `what`".
struct NamedUnit {
  absl::string_view name;
  double factor;
};
absl::StatusOr<int64_t> ParseUnits(absl::string_view text, absl::Span<const NamedUnit> units,
                                   absl::string_view what);
// Parses "64", "64K", "1.5M" or "2G". The factors are powers of 1024. Returns bytes.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);
// Parses "250ms", "30s", "5m" or "2h". A number without a unit is in seconds. Returns nanoseconds,
// more than 0.
absl::StatusOr<int64_t> ParseDuration(absl::string_view text);

// Copies a caller's struct `from` over `known`, a struct that already holds the defaults. The first
// member of both structs is the size in bytes. Copies the first min(size, known_size) bytes.
//
// Returns INVALID_ARGUMENT in these cases:
// - `from` is null.
// - The size is 0: the caller did not initialise the struct.
// - The size is not a multiple of 8. The size of every struct of the ABI is a multiple of 8, so any
//   other size ends inside a member.
// - `from` is longer than `known`, and a byte beyond `known_size` is not zero. The caller was built
//   for a newer library and uses a member that this library does not have.
// Error texts begin with `name`.
absl::Status CopyStruct(const void* from, void* known, size_t known_size, const char* name);

}  // namespace entrain
