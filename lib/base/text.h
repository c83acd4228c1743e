// Cleans a text from another process, so that a message of this library may contain the text.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

constexpr size_t kMaxForeignText = 2048;

// Returns one line of valid UTF-8 that is safe for a terminal and a log. Bytes that are not UTF-8,
// control characters, and characters that reorder or break lines become '?'. Tabs and line ends
// become a space. A text longer than `most` bytes is cut, with "..." at the end. A clean text does
// not change.
std::string CleanText(absl::string_view foreign, size_t most = kMaxForeignText);

}  // namespace entrain
