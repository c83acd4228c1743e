#include "lib/comm/failure/peer_silence.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr int64_t kAllowed = 1000, kStart = 50000;

TEST(PeerSilence, ARankIsSilentAfterTheAllowedTime) {
  PeerSilence silence(3);
  silence.Begin(kStart, kAllowed);
  EXPECT_EQ(silence.SilentAt(1).at_ns, kStart + kAllowed) << "the question has just been sent";
  silence.OnEvent(kStart + 300);
  silence.OnHeard(1, kStart + 300);
  EXPECT_EQ(silence.SilentAt(1).at_ns, kStart + 300 + kAllowed);
  EXPECT_EQ(silence.SilentAt(2).at_ns, kStart + kAllowed) << "another rank is as it was";
}

TEST(PeerSilence, ABreakOfThisRankIsNotSilenceOfTheOthers) {
  PeerSilence silence(2);
  silence.Begin(kStart, kAllowed);
  silence.OnEvent(kStart + kAllowed / 2);
  EXPECT_EQ(silence.SilentAt(1).at_ns, kStart + kAllowed) << "that was no break";
  const int64_t woken = kStart + 10 * kAllowed;
  silence.OnEvent(woken);
  EXPECT_EQ(silence.SilentAt(1).at_ns, woken + kAllowed);
  EXPECT_FALSE(silence.SilentAt(1).Passed(woken));
}

TEST(PeerSilence, AQuestionIsDueAfterEveryQuarter) {
  PeerSilence silence(2);
  silence.Begin(kStart, kAllowed);
  EXPECT_EQ(silence.ask_at().at_ns, kStart + kAllowed / 4);
  EXPECT_FALSE(silence.TakeQuestion(kStart + kAllowed / 4 - 1));
  EXPECT_TRUE(silence.TakeQuestion(kStart + kAllowed / 4 + 7));
  EXPECT_EQ(silence.ask_at().at_ns, kStart + kAllowed / 2 + 7);
  EXPECT_FALSE(silence.TakeQuestion(kStart + kAllowed / 4 + 8));
}

TEST(PeerSilence, TheNextWaitBeginsAnew) {
  PeerSilence silence(2);
  silence.Begin(kStart, kAllowed);
  silence.OnHeard(1, kStart + 1);
  const int64_t later = kStart + 100 * kAllowed;
  silence.Begin(later, 2 * kAllowed);
  EXPECT_EQ(silence.SilentAt(1).at_ns, later + 2 * kAllowed);
  EXPECT_EQ(silence.ask_at().at_ns, later + kAllowed / 2);
}

}  // namespace
}  // namespace entrain
