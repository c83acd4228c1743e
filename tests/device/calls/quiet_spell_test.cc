#include "lib/device/calls/quiet_spell.h"

#include <optional>

#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(QuietSpell, GrowsUntilALookDoesSomething) {
  QuietSpell quiet;
  EXPECT_EQ(quiet.AfterLook(100, 1, true), std::nullopt);
  EXPECT_EQ(quiet.AfterLook(130, 1, false), 30);
  EXPECT_EQ(quiet.AfterLook(190, 1, false), 90);
  EXPECT_EQ(quiet.AfterLook(200, 1, true), std::nullopt);
  EXPECT_EQ(quiet.AfterLook(207, 1, false), 7);
}

TEST(QuietSpell, DoesNotCountATimeWithoutCalls) {
  QuietSpell quiet;
  EXPECT_EQ(quiet.AfterLook(100, 1, true), std::nullopt);
  EXPECT_EQ(quiet.AfterLook(1'000'000, 2, false), std::nullopt);
  EXPECT_EQ(quiet.AfterLook(1'000'007, 2, false), 7);
}

TEST(QuietSpell, CountsFromTheFirstCall) {
  QuietSpell quiet;
  EXPECT_EQ(quiet.AfterLook(1'000'000, 1, false), std::nullopt);
  EXPECT_EQ(quiet.AfterLook(1'000'003, 1, false), 3);
}

}  // namespace
}  // namespace entrain
