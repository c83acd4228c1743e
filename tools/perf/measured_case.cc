#include "tools/perf/measured_case.h"

#include <algorithm>

namespace entrain::perf {
namespace {

constexpr absl::string_view kNames[kCollectives] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast",      "reduce",  "gather",
    "scatter",    "all_to_all",     "scan",       "exclusive_scan", "barrier", "send_recv"};

}  // namespace

absl::string_view NameOf(Collective collective) {
  return kNames[static_cast<size_t>(collective)];
}

std::optional<Collective> CollectiveFromName(absl::string_view name) {
  for (int i = 0; i < kCollectives; ++i) {
    if (kNames[i] == name) {
      return static_cast<Collective>(i);
    }
  }
  return std::nullopt;
}

bool Reduces(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce:
    case Collective::kScan:
    case Collective::kExclusiveScan:
      return true;
    default:
      return false;
  }
}

bool IsRooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool Case::per_rank() const {
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return true;
    default:
      return false;
  }
}

Case Case::OfSize(const Case& like, int64_t bytes) {
  Case result = like;
  if (like.collective == Collective::kBarrier) {
    result.count = result.bytes = 0;
    return result;
  }
  const int64_t unit = SizeOf(like.dtype) * (like.per_rank() ? like.ranks : 1);
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
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    default:
      return per_rank() ? (n - 1) / n : 1;
  }
}

}  // namespace entrain::perf
