// The pre-shared key of a job, from a file (ENTRAIN_KEY_FILE).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

// A shorter key could be guessed. 16 random bytes cannot; `openssl rand -hex 32` writes 64 digits.
constexpr size_t kMinKeyBytes = 16, kMaxKeyBytes = 4096;

// Returns the file's bytes, without one newline at the end. Refuses (FAILED_PRECONDITION naming the
// path) a file that group or others may read or write, that is shorter than kMinKeyBytes or longer
// than kMaxKeyBytes, or that is no regular file.
absl::StatusOr<std::string> ReadKeyFile(absl::string_view path);

}  // namespace entrain
