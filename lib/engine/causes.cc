#include "lib/engine/causes.h"

#include <optional>

#include "lib/base/status.h"

namespace entrain {

void Causes::Tell(const absl::Status& why) {
  if (!told() || clock_.Now() - told_at_ns_ > kGoneOnNs) {
    told_ = why;
    told_at_ns_ = clock_.Now();
    tell_all_(EncodeStatus(told_));
  }
}

void Causes::TakeBack() {
  told_ = absl::OkStatus();
  tell_all_(EncodeStatus(told_));
}

void Causes::Hear(const Endpoint* from, absl::string_view text) {
  if (const std::optional<absl::Status> cause = DecodeStatus(text)) {
    heard_[from] = {*cause, clock_.Now()};
  }
}

absl::Status Causes::Of(const Endpoint* from, int64_t since_ns) const {
  const auto found = heard_.find(from);
  return found != heard_.end() && found->second.at_ns > since_ns ? found->second.cause
                                                                 : absl::OkStatus();
}

}  // namespace entrain
