// The causes by which communicators end, as processes tell them to each other.
#include "lib/engine/causes.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

class CausesTest : public testing::Test {
 protected:
  // Returns the status in the last text to the peers.
  absl::Status LastTold() const { return DecodeStatus(texts.back()).value(); }
  static const Endpoint* Peer(size_t number) {
    return reinterpret_cast<const Endpoint*>(number);  // never dereferenced
  }

  FakeClock clock;
  std::vector<std::string> texts;
  Causes causes{clock, [this](const std::string& text) { texts.push_back(text); }};
};

TEST_F(CausesTest, TheFirstCountsForAWhile) {
  EXPECT_FALSE(causes.told());
  causes.Tell(absl::UnavailableError("first"));
  EXPECT_TRUE(causes.told());
  clock.Advance(Causes::kGoneOnNs);
  causes.Tell(absl::UnavailableError("second"));
  EXPECT_EQ(causes.cause().message(), "first");
  EXPECT_EQ(texts.size(), 1u);
  EXPECT_EQ(LastTold().message(), "first");
  clock.Advance(1);
  causes.Tell(absl::UnavailableError("third"));
  EXPECT_EQ(causes.cause().message(), "third");
  EXPECT_EQ(LastTold().message(), "third");
}

TEST_F(CausesTest, ACallThatWasStartedLaterTakesItBack) {
  causes.Succeeded(clock.Now());
  EXPECT_TRUE(texts.empty()) << "nothing to take back";
  causes.Tell(absl::UnavailableError("first"));
  const int64_t told_ns = clock.Now();
  clock.Advance(2 * Causes::kGoneOnNs);
  causes.Succeeded(told_ns + Causes::kGoneOnNs);
  EXPECT_TRUE(causes.told()) << "it was started too soon after";
  causes.Succeeded(told_ns + Causes::kGoneOnNs + 1);
  EXPECT_FALSE(causes.told());
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_TRUE(LastTold().ok());
}

TEST_F(CausesTest, APeersCauseIsKnownByWhenItCame) {
  EXPECT_TRUE(causes.Of(Peer(1), 0).ok());
  clock.Advance(100);
  const int64_t came_ns = clock.Now();
  causes.Hear(Peer(1), EncodeStatus(absl::AbortedError("lost its neighbour")));
  EXPECT_EQ(causes.Of(Peer(1), came_ns - 1).message(), "lost its neighbour");
  EXPECT_TRUE(causes.Of(Peer(1), came_ns).ok()) << "it was told before that";
  EXPECT_TRUE(causes.Of(Peer(2), 0).ok()) << "another peer has said nothing";
  EXPECT_FALSE(causes.told()) << "a peer's cause is not this process's";
  causes.Hear(Peer(1), EncodeStatus(absl::OkStatus()));
  EXPECT_TRUE(causes.Of(Peer(1), 0).ok()) << "taken back";
}

TEST_F(CausesTest, ATextThatIsNoStatusIsIgnored) {
  causes.Hear(Peer(1), EncodeStatus(absl::AbortedError("good")));
  causes.Hear(Peer(1), "\xff");
  EXPECT_EQ(causes.Of(Peer(1), 0).message(), "good");
}

}  // namespace
}  // namespace entrain
