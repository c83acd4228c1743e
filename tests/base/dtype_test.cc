#include "lib/base/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

#include "include/entrain/types.h"

namespace entrain {
namespace {

TEST(DTypes, AreTheOnesOfTheAbi) {
  EXPECT_EQ(static_cast<int32_t>(DType::kF32), ENTRAIN_F32);
  EXPECT_EQ(static_cast<int32_t>(DType::kF8E5M2), ENTRAIN_F8_E5M2);
  EXPECT_EQ(static_cast<int32_t>(DType::kU64), ENTRAIN_U64);
  EXPECT_EQ(static_cast<int32_t>(DType::kF32I32), ENTRAIN_F32_I32);
  EXPECT_EQ(static_cast<int32_t>(DType::kI64I64), ENTRAIN_I64_I64);
  EXPECT_EQ(kDTypes, ENTRAIN_I64_I64 + 1);
}

TEST(DTypes, NamesGoThereAndBack) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(IsValid(dtype));
    EXPECT_EQ(DTypeFromName(NameOf(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("f33"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
  EXPECT_FALSE(IsValid(static_cast<DType>(-1)));
  EXPECT_FALSE(IsValid(static_cast<DType>(kDTypes)));
}

// The name of a type states its bits: the digits of "bf16", the digits of both halves of "f32_i32",
// and the digits of "f8_e4m3" before the format.
TEST(DTypes, SizesMatchTheirNames) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    int bits = 0, widths = 0;
    for (const absl::string_view part : absl::StrSplit(NameOf(dtype), '_')) {
      int width = 0;
      if (absl::SimpleAtoi(absl::StripPrefix(absl::StripPrefix(part, "b"), "f"), &width) ||
          absl::SimpleAtoi(part.substr(1), &width)) {
        bits += width;
        ++widths;
      }
    }
    EXPECT_EQ(SizeOf(dtype) * 8, bits) << NameOf(dtype);
    EXPECT_EQ(IsPair(dtype), widths == 2) << NameOf(dtype);
    EXPECT_EQ(AlignmentOf(dtype) * 8 * widths, bits) << NameOf(dtype);
    const bool starts_as_float = NameOf(dtype)[0] == 'f' || NameOf(dtype)[0] == 'b';
    EXPECT_EQ(IsFloat(dtype), widths == 1 && starts_as_float) << NameOf(dtype);
    EXPECT_EQ(IsInteger(dtype), widths == 1 && !starts_as_float) << NameOf(dtype);
  }
}

// Returns the value of a binary float with these numbers of exponent and fraction bits, by the
// definition of the format.
double Decode(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? NAN : sign * INFINITY;
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  }
  return sign * std::ldexp((1u << fraction_bits) | fraction, exponent - bias - fraction_bits);
}

struct Format {
  const char* name;
  int exponent_bits, fraction_bits;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
};
class SixteenBitTest : public ::testing::TestWithParam<Format> {};

TEST_P(SixteenBitTest, EveryPatternHasItsValueAndComesBack) {
  const Format& format = GetParam();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = Decode(bits, format.exponent_bits, format.fraction_bits);
    const float got = format.to_float(static_cast<uint16_t>(bits));
    const uint16_t back = format.from_float(got);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(format.to_float(back))) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
      ASSERT_EQ(back, bits);
    }
  }
}

// Checks the rounding between two neighbours: a value below the middle is rounded down, a value
// above the middle is rounded up, and the middle itself is rounded to the even pattern.
TEST_P(SixteenBitTest, RoundsToNearestEven) {
  const Format& format = GetParam();
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double here = Decode(bits, format.exponent_bits, format.fraction_bits);
    // The next value, if the format continued above its largest.
    const double next =
        bits + 1 == infinity
            ? here + (here - Decode(bits - 1, format.exponent_bits, format.fraction_bits))
            : Decode(bits + 1, format.exponent_bits, format.fraction_bits);
    const auto middle = static_cast<float>((here + next) / 2);
    if (!std::isfinite(middle)) {
      continue;
    }
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(format.from_float(middle), even) << bits;
    ASSERT_EQ(format.from_float(-middle), even | 0x8000) << bits;
    ASSERT_EQ(format.from_float(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(format.from_float(std::nextafter(middle, INFINITY)), bits + 1) << bits;
  }
}

TEST_P(SixteenBitTest, NaNStaysNaNWhateverItsPayload) {
  const Format& format = GetParam();
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7fc00000u, 0x7f801000u}) {
    const uint16_t narrow = format.from_float(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(format.to_float(narrow))) << bits;
    EXPECT_EQ(narrow >> 15, bits >> 31) << bits;
  }
}

TEST_P(SixteenBitTest, TooLargeIsInfinite) {
  const Format& format = GetParam();
  EXPECT_EQ(format.to_float(format.from_float(INFINITY)), INFINITY);
  EXPECT_EQ(format.to_float(format.from_float(-3.4e38f)), -INFINITY);
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBitTest,
                         ::testing::Values(Format{"bf16", 8, 7, BF16ToFloat, FloatToBF16},
                                           Format{"f16", 5, 10, F16ToFloat, FloatToF16}),
                         [](const auto& format) { return std::string(format.param.name); });

// ---- The 8-bit floats, against a search among their 256 values

struct SmallFormat {
  const char* name;
  int exponent_bits, fraction_bits;
  bool has_infinity;
  uint8_t largest;  // the pattern of the largest number
  float (*to_float)(uint8_t);
  uint8_t (*from_float)(float);
};

class EightBitTest : public ::testing::TestWithParam<SmallFormat> {
 protected:
  // Returns the value of a pattern by the definition of the format. In a format without infinities,
  // all patterns of the last exponent but one are numbers.
  double Value(uint32_t bits) const {
    const SmallFormat& f = GetParam();
    if (f.has_infinity) {
      return Decode(bits, f.exponent_bits, f.fraction_bits);
    }
    if ((bits & 0x7f) == 0x7f) {
      return NAN;
    }
    const double sign = bits & 0x80 ? -1 : 1;
    const uint32_t magnitude = bits & 0x7f;
    if (magnitude < 8) {
      return sign * std::ldexp(magnitude, -9);
    }
    return sign * std::ldexp(8 + (magnitude & 7), static_cast<int>(magnitude >> 3) - 7 - 3);
  }
  // Returns the nearest of all values, and the even pattern of two equally near ones. The pattern
  // above the largest number stands for overflow. It has the value that it would have if the format
  // continued.
  uint8_t Nearest(float x) const {
    const SmallFormat& f = GetParam();
    const uint32_t sign = std::signbit(x) ? 0x80 : 0;
    const double size = std::min(std::abs(double{x}), 1e6);  // distances are exact below this limit
    uint32_t best = 0;
    double distance = INFINITY;
    for (uint32_t bits = 0; bits <= f.largest + 1u; ++bits) {
      const double here = bits <= f.largest ? Value(bits) : 2 * Value(bits - 1) - Value(bits - 2);
      const double away = std::abs(size - here);
      if (away < distance || (away == distance && bits % 2 == 0)) {
        best = bits;
        distance = away;
      }
    }
    return static_cast<uint8_t>(sign | best);
  }
  void Check(float x) const { ASSERT_EQ(GetParam().from_float(x), Nearest(x)) << x; }
};

TEST_P(EightBitTest, EveryPatternHasItsValueAndComesBack) {
  const SmallFormat& f = GetParam();
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const double want = Value(bits);
    const float got = f.to_float(static_cast<uint8_t>(bits));
    ASSERT_EQ(std::signbit(got), bits >= 128) << bits;
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(f.to_float(f.from_float(got)))) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
      ASSERT_EQ(f.from_float(got), bits);
    }
  }
}

TEST_P(EightBitTest, RoundsToNearestEven) {
  const SmallFormat& f = GetParam();
  for (uint32_t bits = 0; bits <= f.largest; ++bits) {
    const double here = Value(bits);
    const double next = bits < f.largest ? Value(bits + 1) : 2 * here - Value(bits - 1);
    const auto middle = static_cast<float>((here + next) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      Check(x);
      Check(-x);
    }
  }
  for (uint64_t bits = 0; bits < 0x7f800000; bits += 104729) {
    Check(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    Check(std::bit_cast<float>(static_cast<uint32_t>(bits | 0x80000000)));
  }
}

TEST_P(EightBitTest, WhatIsTooLargeIsInfiniteWhereThatExistsAndElseNaN) {
  const SmallFormat& f = GetParam();
  for (const float x : {INFINITY, 3.4e38f, 65536.0f}) {
    EXPECT_EQ(f.from_float(x), f.has_infinity ? 0x7c : 0x7f);
    EXPECT_EQ(f.from_float(-x), f.has_infinity ? 0xfc : 0xff);
  }
}

TEST_P(EightBitTest, NaNStaysNaNWhateverItsPayload) {
  const SmallFormat& f = GetParam();
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7fc00000u, 0x7fa00000u}) {
    const uint8_t narrow = f.from_float(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(f.to_float(narrow))) << bits;
    EXPECT_EQ(narrow >> 7, bits >> 31) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, EightBitTest,
    ::testing::Values(SmallFormat{"f8_e4m3", 4, 3, false, 0x7e, F8E4M3ToFloat, FloatToF8E4M3},
                      SmallFormat{"f8_e5m2", 5, 2, true, 0x7b, F8E5M2ToFloat, FloatToF8E5M2}),
    [](const auto& format) { return std::string(format.param.name); });

TEST(EightBitFloats, HaveTheLimitsOfTheSpecification) {
  EXPECT_EQ(F8E4M3ToFloat(0x7e), 448);
  EXPECT_EQ(F8E4M3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(F8E4M3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(FloatToF8E4M3(464), 0x7e);
  EXPECT_EQ(F8E5M2ToFloat(0x7b), 57344);
  EXPECT_EQ(F8E5M2ToFloat(0x04), 0x1p-14f);
  EXPECT_EQ(F8E5M2ToFloat(0x01), 0x1p-16f);
}

}  // namespace
}  // namespace entrain
