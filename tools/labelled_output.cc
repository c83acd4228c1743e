#include "tools/labelled_output.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

constexpr size_t kMaxLine = 64 << 10;

}  // namespace

LabelledOutput::LabelledOutput(Outlet* to, std::string label) : to_(to), label_(std::move(label)) {}

void LabelledOutput::Add(absl::string_view text) {
  rest_.append(text.data(), text.size());
  std::string lines;
  size_t start = 0;
  while (start < rest_.size()) {
    const size_t newline = rest_.find('\n', start);
    const bool cut = newline == std::string::npos || newline - start > kMaxLine;
    if (cut && rest_.size() - start <= kMaxLine) {
      break;
    }
    const size_t length = cut ? kMaxLine : newline - start;
    absl::StrAppend(&lines, label_, absl::string_view(rest_).substr(start, length), "\n");
    start += length + (cut ? 0 : 1);
  }
  rest_.erase(0, start);
  to_->Add(lines);
}

void LabelledOutput::Finish() {
  if (!rest_.empty()) {
    Add("\n");
  }
}

}  // namespace entrain
