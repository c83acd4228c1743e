// Makes a text from another process safe to print and log.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

constexpr size_t kMaxForeignText = 2048;

// Returns `foreign` as one line of valid UTF-8 that is safe for terminals and logs. Replaces by
// '?': bytes that are not UTF-8, control characters, and characters that reorder or break lines.
// Replaces tabs and line ends by spaces. Cuts a text that is longer than `most` bytes and appends
// "...". A text with none of these stays the same.
std::string CleanText(absl::string_view foreign, size_t most = kMaxForeignText);

}  // namespace entrain
