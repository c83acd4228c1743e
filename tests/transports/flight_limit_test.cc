// FlightLimit beside a model of a path: a link of a rate, a round trip, and a queue.
#include "transports/tcp/flight_limit.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "lib/base/clock.h"

namespace entrain {
namespace {

// Sends as much as the limit allows, for `seconds`. The link has `rate` bytes per nanosecond and a
// shortest round trip `trip_ns`; `others_ns` is the time that the bytes of others wait in the queue.
// Returns the limit at the end.
int64_t LimitAfter(FlightLimit& limit, double rate, int64_t trip_ns, double seconds,
                   int64_t others_ns = 0, int64_t window = int64_t{1} << 40) {
  static int64_t now = 0;  // of all paths of this test
  static double acknowledged = 0;
  const int64_t end = now + static_cast<int64_t>(seconds * kSecond);
  const int64_t least = now + trip_ns;  // nothing is acknowledged before
  limit.OnMeasured(now, 0, static_cast<int64_t>(acknowledged), trip_ns, trip_ns);
  while (now < end) {
    now += kMillisecond;
    const auto under_way = static_cast<double>(std::min(limit.bytes(), window));
    const double trip = std::max(static_cast<double>(trip_ns + others_ns), under_way / rate);
    if (now > least) {
      acknowledged += under_way / trip * static_cast<double>(kMillisecond);
    }
    limit.OnMeasured(now, static_cast<int64_t>(under_way), static_cast<int64_t>(acknowledged),
                     static_cast<int64_t>(trip), trip_ns);
  }
  return limit.bytes();
}

TEST(FlightLimit, IsALittleMoreThanRateTimesRoundTrip) {
  for (const double rate : {0.0125, 0.125, 1.25}) {  // 100 Mbit/s to 10 Gbit/s
    for (const int64_t trip_ms : {20, 100, 300}) {
      FlightLimit limit;
      const int64_t trip = trip_ms * kMillisecond;
      const auto product = static_cast<double>(trip) * rate;
      const auto bytes = static_cast<double>(LimitAfter(limit, rate, trip, 30));
      EXPECT_GE(bytes, 1.05 * product) << rate << " " << trip_ms;
      EXPECT_LE(bytes, std::max<double>(FlightLimit::kLeast, 1.6 * product + 30e6 * rate))
          << rate << " " << trip_ms;
    }
  }
}

TEST(FlightLimit, GrowsAgainWhenTheLinkGetsFaster) {
  FlightLimit limit;
  LimitAfter(limit, 0.125, 100 * kMillisecond, 10);
  EXPECT_GE(LimitAfter(limit, 0.5, 100 * kMillisecond, 20), 0.5 * 100 * kMillisecond);
}

TEST(FlightLimit, AQueueOfOthersDoesNotPushThePathAside) {
  FlightLimit limit;
  LimitAfter(limit, 0.125, 100 * kMillisecond, 10);
  // The bytes of others wait 40 ms: this path keeps what it had.
  EXPECT_GE(LimitAfter(limit, 0.125, 100 * kMillisecond, 60, 40 * kMillisecond),
            0.125 * 100 * kMillisecond);
}

TEST(FlightLimit, APauseChangesNothing) {
  FlightLimit limit;
  const int64_t before = LimitAfter(limit, 0.125, 100 * kMillisecond, 10);
  const int64_t after = LimitAfter(limit, 0.125, 100 * kMillisecond, 1);
  EXPECT_NEAR(static_cast<double>(after), static_cast<double>(before),
              0.1 * static_cast<double>(before));
}

TEST(FlightLimit, NeverFallsBelowTheWindowOfOneConnection) {
  FlightLimit limit;
  EXPECT_EQ(limit.bytes(), FlightLimit::kLeast);
  EXPECT_EQ(LimitAfter(limit, 0.001, 20 * kMillisecond, 10), FlightLimit::kLeast);
}

}  // namespace
}  // namespace entrain
