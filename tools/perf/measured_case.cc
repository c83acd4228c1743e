#include "tools/perf/measured_case.h"

#include <algorithm>

namespace entrain::perf {

absl::string_view TitleOf(CallKind collective) {
  return collective == CallKind::kSend ? "send_recv" : NameOf(collective);
}

std::optional<CallKind> CollectiveFromTitle(absl::string_view title) {
  for (const CallKind collective : kMeasured) {
    if (TitleOf(collective) == title) {
      return collective;
    }
  }
  return std::nullopt;
}

Case Case::OfSize(const Case& like, int64_t bytes) {
  Case result = like;
  if (like.collective == CallKind::kBarrier) {
    result.count = result.bytes = 0;
    return result;
  }
  const int64_t unit = SizeOf(like.dtype) * (HasParts(like.collective) ? like.ranks : 1);
  result.count = std::max<int64_t>(1, bytes / unit);
  result.bytes = result.count * unit;
  return result;
}

std::vector<Case> Case::Sweep(const Case& like, int64_t min_bytes, int64_t max_bytes, int factor) {
  std::vector<Case> cases;
  const auto add = [&](int64_t bytes) {
    const Case one = OfSize(like, bytes);
    if (cases.empty() || cases.back().bytes != one.bytes) {
      cases.push_back(one);
    }
  };
  for (int64_t bytes = std::max<int64_t>(min_bytes, 1);
       bytes<max_bytes; bytes = bytes> max_bytes / factor ? max_bytes : bytes * factor) {
    add(bytes);
  }
  add(max_bytes);
  return cases;
}

double Case::bus_factor() const {
  const double n = ranks;
  switch (collective) {
    case CallKind::kAllReduce:
      return 2 * (n - 1) / n;
    default:
      return HasParts(collective) ? (n - 1) / n : 1;
  }
}

}  // namespace entrain::perf
