#include "lib/comm/call_numbers.h"

#include <algorithm>
#include <tuple>

namespace entrain {

CallNumbers::Series CallNumbers::Of(const Call& call) {
  const uint32_t tag = TagOf(call);
  return IsMessage(call.kind) ? Messages(tag, call.kind, call.root) : Collectives(tag);
}

uint64_t CallNumbers::TakeTagged(Series series) {
  absl::MutexLock lock(&mutex_);
  return tagged_[series]++;
}

CallNumbers::Count CallNumbers::CountOf(Series series, uint64_t used) {
  const bool collectives = series.way == Series::kCollectives;
  return {series.tag == Tag::kUntagged ? -1 : int64_t{series.tag},
          collectives ? -1 : series.way / 2, !collectives && series.way % 2 == 0, used};
}

std::vector<CallNumbers::Count> CallNumbers::Counts() const {
  std::vector<Count> counts;
  for (size_t i = 0; i < untagged_.size(); ++i) {
    Series series;
    series.way = static_cast<int>(i) - 1;
    if (const uint64_t used = untagged_[i].load(std::memory_order_relaxed); used > 0) {
      counts.push_back(CountOf(series, used));
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [series, used] : tagged_) {
      counts.push_back(CountOf(series, used));
    }
  }
  std::sort(counts.begin(), counts.end(), [](const Count& a, const Count& b) {
    return std::tie(a.tag, a.peer, a.sends) < std::tie(b.tag, b.peer, b.sends);
  });
  return counts;
}

uint64_t CallNumbers::Next(Series series) const {
  if (series.tag == Tag::kUntagged) {
    return Untagged(series).load(std::memory_order_relaxed);
  }
  absl::MutexLock lock(&mutex_);
  const auto found = tagged_.find(series);
  return found == tagged_.end() ? 0 : found->second;
}

}  // namespace entrain
