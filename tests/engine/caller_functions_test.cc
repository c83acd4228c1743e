// Functions of the caller: finding the function that holds up this rank.
#include "lib/engine/caller_functions.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

class CallerFunctionsTest : public testing::Test {
 protected:
  FakeClock clock;
  CallerFunctions functions{clock};
  int one = 0, other = 0;  // their addresses stand for callers
};

TEST_F(CallerFunctionsTest, NobodyIsInside) {
  EXPECT_TRUE(functions.Inside(0).ok());
}

TEST_F(CallerFunctionsTest, SaysWhereItIsAndForHowLong) {
  functions.Note(&one, "the outer step");
  clock.Advance(3 * kSecond);
  EXPECT_TRUE(functions.Inside(3 * kSecond + 1).ok()) << "not for so long";
  const absl::Status inside = functions.Inside(3 * kSecond);
  EXPECT_EQ(inside.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(inside.message(), "it is in the outer step, which has not returned for 3 s");
}

TEST_F(CallerFunctionsTest, TheFirstToEnterCountsUntilItReturns) {
  functions.Note(&one, "first");
  clock.Advance(kSecond);
  functions.Note(&other, "second");
  clock.Advance(kSecond);
  EXPECT_EQ(functions.Inside(0).message(), "it is in first, which has not returned for 2 s");
  functions.Note(&one, "");
  EXPECT_EQ(functions.Inside(0).message(), "it is in second, which has not returned for 1 s");
  functions.Note(&other, "");
  EXPECT_TRUE(functions.Inside(0).ok());
}

TEST_F(CallerFunctionsTest, TheNextFunctionOfOneThreadReplacesTheLast) {
  functions.Note(&one, "first");
  clock.Advance(kSecond);
  functions.Note(&other, "second");
  functions.Note(&one, "third");
  clock.Advance(kSecond);
  EXPECT_EQ(functions.Inside(0).message(), "it is in second, which has not returned for 1 s");
}

TEST_F(CallerFunctionsTest, TheThreadOfDoneIsMadeOnce) {
  const auto first = functions.Thread(), second = functions.Thread();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *second);
}

}  // namespace
}  // namespace entrain
