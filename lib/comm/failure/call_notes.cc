#include "lib/comm/failure/call_notes.h"

namespace entrain {

const OwnCall* CallNotes::Hear(const Endpoint& from, CallId call, const Descriptor& theirs) {
  const OwnCall& over = SlotOf(call);
  if (over.id == call) {
    return over.descriptor != theirs ? &over : nullptr;
  }
  const uint32_t behind = (over.id.number - call.number) & Tag::kCallMask;
  if (over.id.user_tag == call.user_tag && behind <= Tag::kCallMask / 2) {
    // This rank's call is over, and its record was overwritten. A note in early_ would stay there
    // until a later call gets the same number.
    return nullptr;
  }
  if (early_.size() < kMaxEarly) {
    Early& early = early_[KeyOf(call)];
    const Heard heard{&from, theirs};
    if (early.first.from == nullptr) {
      early.first = heard;
    } else if (early.first.descriptor != theirs) {
      early.other = heard;
    }
  }
  return nullptr;
}

std::optional<CallNotes::Heard> CallNotes::Meet(CallId call, const Descriptor& ours) {
  if (early_.empty()) {
    return std::nullopt;
  }
  const auto found = early_.find(KeyOf(call));
  if (found == early_.end()) {
    return std::nullopt;
  }
  const Early early = found->second;
  early_.erase(found);
  for (const Heard& heard : {early.first, early.other}) {
    if (heard.from != nullptr && heard.descriptor != ours) {
      return heard;
    }
  }
  return std::nullopt;
}

}  // namespace entrain
