#include "lib/train/identity.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace entrain {
namespace {

constexpr size_t kMostBytes = 4096, kMostLines = 64;

// Returns 48 bits, which a double holds exactly (FNV-1a).
double HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return static_cast<double>(hash >> 16);
}

std::map<std::string, std::string> LinesOf(absl::string_view text) {
  std::map<std::string, std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    lines[std::string(absl::StripAsciiWhitespace(parts.first))] =
        std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::vector<NamedValue>> ParseIdentity(absl::string_view text) {
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity: has ", text.size(), " bytes, and may have ", kMostBytes));
  }
  std::vector<NamedValue> identity;
  std::set<std::string> keys;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(parts.first));
    if (key.empty() || line.find('=') == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("identity: \"", line, "\" is not KEY=VALUE"));
    }
    if (!keys.insert(key).second) {
      return absl::InvalidArgumentError(absl::StrCat("identity: ", key, " comes twice"));
    }
    double number = 0;
    const bool is_number = absl::SimpleAtod(parts.second, &number) && std::isfinite(number);
    identity.push_back({absl::StrCat("identity: ", key, is_number ? "" : " (hash of a text)"),
                        is_number ? number : HashOf(parts.second)});
  }
  if (identity.size() > kMostLines) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity: has ", identity.size(), " lines, and may have ", kMostLines));
  }
  return identity;
}

std::string IdentityDiffers(absl::string_view there, absl::string_view here) {
  const std::map<std::string, std::string> saved = LinesOf(there), mine = LinesOf(here);
  std::set<std::string> keys;
  for (const auto* lines : {&saved, &mine}) {
    for (const auto& [key, value] : *lines) {
      keys.insert(key);
    }
  }
  std::vector<std::string> differ;
  for (const std::string& key : keys) {
    const auto one = saved.find(key), other = mine.find(key);
    const std::string was = one == saved.end() ? "none" : one->second;
    const std::string is = other == mine.end() ? "none" : other->second;
    if (was != is) {
      differ.push_back(absl::StrCat(key, ": ", was, " there, ", is, " here"));
    }
  }
  return saved.empty() || mine.empty() ? "" : absl::StrJoin(differ, "; ");
}

// Ranks with other keys differ in the sum of the hashes of their keys.
NamedValue SizeOfIdentity(const std::vector<NamedValue>& identity) {
  double keys = 0;
  for (const NamedValue& value : identity) {
    keys += std::fmod(HashOf(value.name), 1 << 20);
  }
  return {"identity: which keys", static_cast<double>(identity.size()) + 128 * keys};
}

}  // namespace entrain
