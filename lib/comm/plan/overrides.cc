#include "lib/comm/plan/overrides.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "collectives/catalog.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

absl::Status ParseRange(absl::string_view text, Override* result) {
  const std::vector<absl::string_view> range = absl::StrSplit(text, absl::MaxSplits('-', 1));
  if (range.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not LOW-HIGH"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(result->low, ParseSize(range[0]));
  if (range[1] != "inf") {
    ENTRAIN_ASSIGN_OR_RETURN(result->high, ParseSize(range[1]));
  }
  if (result->low > result->high) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" begins above its end"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Override> ParseOverride(absl::string_view text) {
  const std::vector<absl::string_view> at = absl::StrSplit(text, absl::MaxSplits('@', 1));
  const std::vector<absl::string_view> names = absl::StrSplit(at[0], absl::MaxSplits(':', 1));
  if (names.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not COLLECTIVE:ALGORITHM[@LOW-HIGH]"));
  }
  Override result{CallKind::kAllReduce, std::string(names[1]), 0, kNoLimit};
  const std::optional<CallKind> kind = CollectiveFromName(names[0]);
  if (!kind) {
    return absl::InvalidArgumentError(
        absl::StrCat("no collective is called \"", names[0], "\"; there are ", CollectiveNames()));
  }
  result.kind = *kind;
  ENTRAIN_RETURN_IF_ERROR(FindAlgorithm(result.kind, names[1]).status());
  if (at.size() == 2) {
    ENTRAIN_RETURN_IF_ERROR(ParseRange(at[1], &result));
  }
  return result;
}

std::string SizeText(int64_t bytes) {
  if (bytes == kNoLimit) {
    return "inf";
  }
  constexpr int64_t kKilo = 1 << 10, kMega = 1 << 20;
  return bytes > 0 && bytes % kMega == 0   ? absl::StrCat(bytes / kMega, "M")
         : bytes > 0 && bytes % kKilo == 0 ? absl::StrCat(bytes / kKilo, "K")
                                           : absl::StrCat(bytes);
}

}  // namespace

absl::StatusOr<std::vector<Override>> ParseOverrides(absl::string_view text) {
  std::vector<Override> overrides;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    ENTRAIN_ASSIGN_OR_RETURN(auto one, ParseOverride(absl::StripAsciiWhitespace(part)));
    overrides.push_back(std::move(one));
  }
  return overrides;
}

std::string ToText(absl::Span<const Override> overrides) {
  return absl::StrJoin(overrides, ",", [](std::string* out, const Override& one) {
    absl::StrAppend(out, NameOf(one.kind), ":", one.algorithm);
    if (one.low > 0 || one.high < kNoLimit) {
      absl::StrAppend(out, "@", SizeText(one.low), "-", SizeText(one.high));
    }
  });
}

}  // namespace entrain
