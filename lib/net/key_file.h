// The pre-shared key of a job, from a file (ENTRAIN_KEY_FILE).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

// Fewer could be guessed. 16 random bytes could not; `openssl rand -hex 32` writes 64 digits.
constexpr size_t kMinKeyBytes = 16, kMaxKeyBytes = 4096;

// The file's bytes, less one newline at the end if there is one. Refused (FAILED_PRECONDITION
// naming the path): files that group or others may read or write, that are shorter than kMinKeyBytes or
// longer than kMaxKeyBytes, or no regular file.
absl::StatusOr<std::string> ReadKeyFile(absl::string_view path);

}  // namespace entrain
