// Text that another process wrote, before it enters a message of ours.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

constexpr size_t kMaxForeignText = 2048;

// One line of valid UTF-8 that a terminal and a log may be given: bytes that are no UTF-8, control characters, and
// characters that reorder or break lines become '?', tabs and ends of lines a space. Of more than `most` bytes the rest is
// left out, and "..." says so. Clean text comes back as it is.
std::string CleanText(absl::string_view foreign, size_t most = kMaxForeignText);

}  // namespace entrain
