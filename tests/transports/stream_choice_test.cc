// The number of streams chosen on several kinds of networks. The test makes up what the kernel
// would count.
#include "transports/tcp/stream_choice.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

#include "lib/base/clock.h"

namespace entrain {
namespace {

// Rates in bytes a second.
struct Network {
  double link, connection;
  double noise = 0;  // largest relative error of a measurement
};

class StreamChoiceTest : public testing::Test {
 protected:
  // Sends a mebibyte at a time, in the time that this network needs.
  void Send(const Network& network, int64_t bytes) {
    std::uniform_real_distribution<double> stray(1 - network.noise, 1 + network.noise);
    for (int64_t sent = 0; sent < bytes; sent += 1 << 20) {
      const int connections = std::max(choice.streams(), 1);
      most = std::max(most, choice.streams());
      const double rate = std::min(network.link, connections * network.connection) * stray(random);
      choice.OnMeasured(1 << 20, static_cast<int64_t>((1 << 20) / rate * kSecond), kMillisecond,
                        held);
    }
  }

  StreamChoice choice;
  std::mt19937 random{1};
  int most = 0;       // largest number of streams tried
  bool held = false;  // something holds the streams back
};

constexpr int64_t kMuch = 1 << 30;

TEST_F(StreamChoiceTest, WithNothingSentThereAreNone) {
  EXPECT_EQ(choice.streams(), 0);
  Send({125e6, 25e6}, 1 << 20);
  EXPECT_EQ(choice.streams(), 0) << "too little to know";
}

TEST_F(StreamChoiceTest, ALimitForEachConnectionIsMadeUpFor) {
  Send({1e9, 25e6}, kMuch);
  EXPECT_EQ(choice.streams(), StreamChoice::kMost);
}

TEST_F(StreamChoiceTest, NoMoreThanBringSomething) {
  Send({55e6, 25e6, 0.01}, kMuch);
  EXPECT_EQ(choice.streams(), 4) << "of 2.2 connections' worth";
  StreamChoice of_two;
  choice = of_two;
  Send({50e6, 25e6, 0.01}, kMuch);
  EXPECT_EQ(choice.streams(), 2);
}

TEST_F(StreamChoiceTest, WhereTheLinkIsTheLimitItStaysAtOneConnection) {
  Send({125e6, 125e6, 0.03}, kMuch);
  EXPECT_EQ(choice.streams(), 0);
  EXPECT_EQ(most, 2) << "it was tried";
}

TEST_F(StreamChoiceTest, TriesAreRareWhereTheyDoNotPay) {
  int tries = 0, before = 0;
  for (int i = 0; i < 20'000; ++i) {
    Send({125e6, 125e6, 0.03}, 1 << 20);
    tries += before == 0 && choice.streams() > 0 ? 1 : 0;
    before = choice.streams();
  }
  EXPECT_GE(tries, 2) << "a network changes";
  EXPECT_LE(tries, 8);
}

TEST_F(StreamChoiceTest, ANetworkThatBecomesLimitedIsFoundOut) {
  Send({125e6, 125e6, 0.03}, kMuch);
  ASSERT_EQ(choice.streams(), 0);
  Send({125e6, 25e6, 0.03}, 4 * kMuch);
  EXPECT_GE(choice.streams(), 4);
}

TEST_F(StreamChoiceTest, ShortMeasurementsAddUp) {
  for (int i = 0; i < 100'000; ++i) {
    const int connections = std::max(choice.streams(), 1);
    choice.OnMeasured(25'000 * connections, kMillisecond, kMillisecond);
  }
  EXPECT_EQ(choice.streams(), StreamChoice::kMost);
}

// The window of a new connection doubles with every round trip. A short measurement would take this
// beginning for the connection's rate.
TEST_F(StreamChoiceTest, OnALongWayAMeasurementHasSeveralRoundTrips) {
  constexpr int64_t kRoundTrip = 300 * kMillisecond;
  int64_t busy = 0;
  while (choice.streams() == 0 && busy < 60 * kSecond) {
    choice.OnMeasured(4 << 20, kRoundTrip / 4, kRoundTrip);
    busy += kRoundTrip / 4;
  }
  EXPECT_GE(busy, 8 * kRoundTrip) << "one is skipped, one counts";
  EXPECT_LT(busy, 9 * kRoundTrip);
}

TEST_F(StreamChoiceTest, OnALongPathItBeginsWithWhatTheWindowsNeed) {
  choice.Begin(3, 16);
  EXPECT_EQ(choice.streams(), 3);
  Send({125e6, 25e6}, kMuch);
  EXPECT_EQ(most, 3) << "nothing holds the streams back";
}

TEST_F(StreamChoiceTest, StreamsOfALongPathThatAreHeldBackBecomeMore) {
  choice.Begin(3, 16);
  held = true;
  Send({1e9, 25e6}, kMuch);
  EXPECT_EQ(choice.streams(), 16);
}

TEST_F(StreamChoiceTest, OnALongPathMoreThatDoNotPayAreGivenUp) {
  choice.Begin(3, 16);
  held = true;
  Send({75e6, 25e6, 0.01}, kMuch);
  EXPECT_EQ(most, 6) << "it was tried";
  EXPECT_EQ(choice.streams(), 3);
}

TEST_F(StreamChoiceTest, WhileTheWindowsOfALongPathGrowNothingIsTried) {
  choice.Begin(3, 16);
  double rate = 4e6;
  for (int i = 0; i < 8; ++i, rate *= 1.5) {  // a second at each rate is one measurement
    choice.OnMeasured(static_cast<int64_t>(rate), kSecond, kMillisecond, /*held=*/true);
    EXPECT_EQ(choice.streams(), 3) << i;
  }
  choice.OnMeasured(static_cast<int64_t>(rate), kSecond, kMillisecond, /*held=*/true);
  choice.OnMeasured(static_cast<int64_t>(rate), kSecond, kMillisecond, /*held=*/true);
  EXPECT_EQ(choice.streams(), 6) << "the rate is the same";
}

}  // namespace
}  // namespace entrain
