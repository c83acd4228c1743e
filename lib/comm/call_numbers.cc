#include "lib/comm/call_numbers.h"

namespace entrain {

CallNumbers::Series CallNumbers::Of(const Call& call) {
  const uint32_t tag = TagOf(call);
  return IsMessage(call.kind) ? Messages(tag, call.kind, call.root) : Collectives(tag);
}

uint64_t CallNumbers::TakeTagged(Series series) {
  absl::MutexLock lock(&mutex_);
  return tagged_[series]++;
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
