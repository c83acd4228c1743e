// A separate list with an option of each type and range. Tests what its rows generate.
#include "lib/train/option_list.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

enum class Color : int32_t { kRed = 0, kGreen = 1 };

#define TEST_OPTIONS(X)                                                                           \
  X(bool, loud, false, Switch(), true, nullptr, true, "whether")                                  \
  X(Color, color, Color::kGreen, OneOf("TEST_COLOR_*", "red,green"), o.loud, "needs loud", false, \
    "which")                                                                                      \
  X(int32_t, many, 3, AtLeast(2), true, nullptr, true, "how many")                                \
  X(int64_t, most, 0, NotNegative(), true, nullptr, false, "at most")                             \
  X(double, share, 0.5, UpTo(0, 1), true, nullptr, false, "of all")                               \
  X(double, length, 1, Above(0), true, nullptr, false, "how long")                                \
  X(uint64_t, seed, 7, AtLeast(0), true, nullptr, false, "where it begins")

struct Options {
  TEST_OPTIONS(ENTRAIN_OPTION_FIELD)
};

using namespace option_range;  // NOLINT: the ranges of the list
constexpr Option<Options> kTable[] = {TEST_OPTIONS(ENTRAIN_OPTION_ROW)};
const absl::Span<const Option<Options>> kRows = kTable;

TEST(OptionList, MakesTheStructWithItsDefaults) {
  const Options options;
  EXPECT_FALSE(options.loud);
  EXPECT_EQ(options.color, Color::kGreen);
  EXPECT_EQ(options.many, 3);
  EXPECT_EQ(options.seed, 7u);
  for (const Option<Options>& row : kRows) {
    EXPECT_EQ(row.value(options), row.fallback) << row.name;
    EXPECT_EQ(CheckRange(row, row.fallback), absl::OkStatus()) << row.name;
  }
}

TEST(OptionList, RowsKnowTheTypes) {
  std::vector<OptionType> types;
  for (const Option<Options>& row : kRows) {
    types.push_back(row.type);
  }
  EXPECT_THAT(types, testing::ElementsAre(OptionType::kSwitch, OptionType::kChoice,
                                          OptionType::kI32, OptionType::kI64, OptionType::kF64,
                                          OptionType::kF64, OptionType::kU64));
}

std::string Says(size_t row, double value) {
  return std::string(CheckRange(kRows[row], value).message());
}

TEST(OptionList, ValuesOutOfRangeAreRefusedByNameAndValue) {
  EXPECT_EQ(Says(0, 2), "loud 2 is neither 0 (off) nor 1 (on)");
  EXPECT_EQ(Says(1, 2), "color 2 is not an TEST_COLOR_* value");
  EXPECT_EQ(Says(2, 1), "many: 1 is less than 2");
  EXPECT_EQ(Says(3, -1), "most: -1 is negative");
  EXPECT_EQ(Says(4, 0), "share: 0 is not in (0, 1]");
  EXPECT_EQ(Says(4, 1), "");
  EXPECT_EQ(Says(4, NAN), "share: nan is not in (0, 1]");
  EXPECT_EQ(Says(5, 0), "length: 0 is not a finite number above 0");
  EXPECT_EQ(Says(5, std::numeric_limits<double>::infinity()),
            "length: inf is not a finite number above 0");
  Options options;
  options.many = 1;
  EXPECT_EQ(CheckRanges(kRows, options).message(), "many: 1 is less than 2");
}

TEST(OptionList, AValueWithoutEffectIsRefused) {
  Options options;
  EXPECT_EQ(CheckInert(kRows, options), absl::OkStatus());
  options.color = Color::kRed;
  EXPECT_EQ(CheckInert(kRows, options).message(), "color: 0 needs loud");
  options.loud = true;
  EXPECT_EQ(CheckInert(kRows, options), absl::OkStatus());
}

TEST(OptionList, RanksShareWhatTheRowsSay) {
  std::vector<NamedValue> shared;
  AppendShared(kRows, Options(), &shared);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].name, "loud");
  EXPECT_EQ(shared[1].name, "many");
  EXPECT_EQ(shared[1].value, 3);
}

}  // namespace
}  // namespace entrain
