#include "lib/base/text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

struct Character {
  uint32_t code;
  size_t bytes;  // 0: not UTF-8
};

// Returns the first character of `text`, which must not be empty.
Character FirstOf(absl::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) {
    return {0, 0};
  }
  uint32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return {0, 0};
    }
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // The smallest code of each length. A longer encoding of a smaller code is not UTF-8.
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return {code, code < kLeast[bytes] || code > 0x10ffff || surrogate ? 0 : bytes};
}

bool Disturbs(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||  // control characters
         code == 0x2028 || code == 0x2029 ||              // line separator, paragraph separator
         code == 0x200e || code == 0x200f || code == 0x61c || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);  // direction of writing
}

}  // namespace

std::string CleanText(absl::string_view foreign, size_t most) {
  std::string clean;
  while (!foreign.empty()) {
    const Character next = FirstOf(foreign);
    const size_t bytes = next.bytes == 0 ? 1 : next.bytes;
    const bool space = next.code == '\t' || next.code == '\n' || next.code == '\r';
    const absl::string_view shown = next.bytes == 0       ? "?"
                                    : space               ? " "
                                    : Disturbs(next.code) ? "?"
                                                          : foreign.substr(0, bytes);
    if (clean.size() + shown.size() > most) {
      return absl::StrCat(clean, "...");
    }
    absl::StrAppend(&clean, shown);
    foreign.remove_prefix(bytes);
  }
  return clean;
}

}  // namespace entrain
