#include "transports/tcp/stream_choice.h"

#include <algorithm>

#include "lib/base/clock.h"

namespace entrain {
namespace {

// A measurement must take at least this time, because the kernel counts the time in ticks of 1 to
// 10 ms.
constexpr int64_t kLeastTime = 100 * kMillisecond;
constexpr int64_t kLeastBytes = 2 << 20;
// A measurement must cover several round trips, because data is acknowledged after a round trip,
// and windows grow once per round trip.
constexpr int64_t kLeastRoundTrips = 4;

}  // namespace

void StreamChoice::OnMeasured(int64_t bytes, int64_t busy_ns, int64_t round_trip_ns, bool held) {
  held_ = held_ || held;
  bytes_ += bytes;
  busy_ns_ += busy_ns;
  if (bytes_ < kLeastBytes || busy_ns_ < std::max(kLeastTime, kLeastRoundTrips * round_trip_ns)) {
    return;
  }
  const double rate = static_cast<double>(bytes_) / static_cast<double>(busy_ns_);
  bytes_ = busy_ns_ = 0;
  const bool may_pay = !if_held_ || held_;
  held_ = false;
  if (skip_) {
    skip_ = false;
  } else {
    OnRate(rate, may_pay);
  }
}

void StreamChoice::OnRate(double bytes_per_ns, bool may_pay) {
  if (trying_ == best_) {
    // While the windows of a long path still grow, the next number would seem to pay whatever it is.
    const bool grows = if_held_ && bytes_per_ns > kPays * best_rate_;
    may_pay = may_pay && !grows;
    best_rate_ = bytes_per_ns;
    if (wait_ > 0) {
      --wait_;
    } else if (best_ < most_ && may_pay) {
      Try(std::clamp(2 * best_, 2, most_));
    }
    return;
  }
  if (bytes_per_ns < kPays * best_rate_) {
    Try(best_);
    Settle();
    return;
  }
  best_ = trying_;
  best_rate_ = bytes_per_ns;
  if (best_ < most_) {
    Try(std::min(2 * best_, most_));
  } else {
    Settle();
  }
}

void StreamChoice::Try(int streams) {
  trying_ = streams;
  skip_ = true;
}

void StreamChoice::Settle() {
  wait_ = backoff_;
  backoff_ = std::min(2 * backoff_, kMostBackoff);
}

}  // namespace entrain
