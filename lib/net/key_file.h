// The pre-shared key of a job, from a file (ENTRAIN_KEY_FILE).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

// A shorter key could be guessed; 16 random bytes cannot be guessed. `openssl rand -hex 32` writes
// 64 digits.
constexpr size_t kMinKeyBytes = 16, kMaxKeyBytes = 4096;

// The advice to an operator when plain traffic between hosts is refused.
inline constexpr absl::string_view kHowToSecure =
    "Make a key with `(umask 077; openssl rand -hex 32 > key)`, copy it to every host and set "
    "ENTRAIN_KEY_FILE to its path, or set ENTRAIN_TLS_CERT, ENTRAIN_TLS_KEY and ENTRAIN_TLS_CA. "
    "ENTRAIN_INSECURE=1 permits plain traffic";

// Returns the file's bytes, without one newline at the end. Returns FAILED_PRECONDITION, with the
// path, if the file cannot be read, is not a regular file, is shorter than kMinKeyBytes or is
// longer than kMaxKeyBytes. Does the same if group or others have any permission for the file.
absl::StatusOr<std::string> ReadKeyFile(absl::string_view path);

}  // namespace entrain
