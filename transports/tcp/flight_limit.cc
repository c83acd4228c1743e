#include "transports/tcp/flight_limit.h"

#include <algorithm>

#include "lib/base/clock.h"

namespace entrain {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
// A measurement takes a round trip, but at least this time.
constexpr int64_t kLeastTime = 20 * kMillisecond;
// The rate grows if a measurement exceeds the best one by a quarter. It has stopped growing after
// kSame measurements.
constexpr double kGrows = 1.25;
constexpr int kSame = 3;
// The limit's time is kShare times the shortest round trip, plus kQueue.
constexpr double kShare = 1.1;
constexpr int64_t kQueue = 15 * kMillisecond;
// A longer smoothed round trip replaces it, up to this share of the shortest.
constexpr double kLongest = 1.5;
// A smaller rate replaces a best rate that is old, slowly.
constexpr double kFades = 0.98;

}  // namespace

void FlightLimit::OnMeasured(int64_t now_ns, int64_t under_way, int64_t acknowledged,
                             int64_t smoothed_ns, int64_t shortest_ns) {
  most_ = std::max(most_, under_way);
  const auto begin = [&] {
    most_ = under_way;
    since_ns_ = now_ns;
    acknowledged_ = acknowledged;
  };
  if (under_way < most_ / 4) {  // the sender has paused, so this measurement says nothing
    begin();
    return;
  }
  const int64_t took_ns = now_ns - since_ns_, bytes = acknowledged - acknowledged_;
  if (took_ns < std::max(shortest_ns, kLeastTime) || bytes == 0 || shortest_ns <= 0) {
    return;
  }
  const double rate = static_cast<double>(bytes) / static_cast<double>(took_ns);
  // If the limit has not held the sender back, a rate that stays the same says nothing about the
  // path: the kernel's windows still grow, or there was little to send.
  const bool held = most_ >= limit_ - limit_ / 5;
  same_ = rate > kGrows * best_ ? 0 : same_ + (held ? 1 : 0);
  best_ = std::max(rate, held ? kFades * best_ : best_);
  begin();
  const auto shortest = static_cast<double>(shortest_ns);
  const double time = std::max(kShare * shortest + kQueue,
                               std::min(static_cast<double>(smoothed_ns), kLongest * shortest));
  const double product = best_ * time * (same_ < kSame ? 2 : 1);
  limit_ = std::clamp(static_cast<int64_t>(product), kLeast, kMost);
}

}  // namespace entrain
