// Conversions between the float types, compared with lib/base/dtype one element at a time.
#include <algorithm>

#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF64,    DType::kBF16,
                            DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kNarrow[] = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

float Widen(uint64_t bits, DType from) {
  const auto half = static_cast<uint16_t>(bits);
  const auto byte = static_cast<uint8_t>(bits);
  switch (from) {
    case DType::kBF16:
      return BF16ToFloat(half);
    case DType::kF16:
      return F16ToFloat(half);
    case DType::kF8E4M3:
      return F8E4M3ToFloat(byte);
    default:
      return F8E5M2ToFloat(byte);
  }
}

uint64_t Narrow(float value, DType to) {
  switch (to) {
    case DType::kBF16:
      return FloatToBF16(value);
    case DType::kF16:
      return FloatToF16(value);
    case DType::kF8E4M3:
      return FloatToF8E4M3(value);
    default:
      return FloatToF8E5M2(value);
  }
}

// Rounds an f64 once: returns the nearest of the pattern of its f32 and the patterns on both sides.
// The pattern after the largest number has the value that it would have if the format continued.
uint64_t NarrowDouble(double value, DType to) {
  const uint64_t sign = uint64_t{1} << (SizeOf(to) * 8 - 1);
  const uint64_t guess = Narrow(static_cast<float>(value), to);
  if (!std::isfinite(value)) {
    return guess;
  }
  const uint64_t overflow = Narrow(INFINITY, to);
  const auto size_of = [to, overflow](uint64_t bits) {
    return bits < overflow ? double{Widen(bits, to)}
                           : 2 * double{Widen(bits - 1, to)} - double{Widen(bits - 2, to)};
  };
  const double size = std::min(std::abs(value), 2 * size_of(overflow));
  const uint64_t middle = guess & (sign - 1);
  uint64_t best = 0;
  double distance = INFINITY;
  for (uint64_t bits = middle > 0 ? middle - 1 : 0; bits <= std::min(middle + 1, overflow);
       ++bits) {
    const double away = std::abs(size - size_of(bits));
    if (away < distance || (away == distance && bits % 2 == 0)) {
      best = bits;
      distance = away;
    }
  }
  return (std::signbit(value) ? sign : 0) | best;
}

// Converts without double, which would quiet a signalling NaN.
uint64_t Converted(const Array& in, int64_t i, DType to) {
  const DType from = in.dtype();
  if (to == from) {
    return BitsAt(in, i);
  }
  if (from == DType::kF64) {
    return to == DType::kF32 ? std::bit_cast<uint32_t>(static_cast<float>(in.At<double>(i)))
                             : NarrowDouble(in.At<double>(i), to);
  }
  const float value = from == DType::kF32 ? in.At<float>(i) : Widen(BitsAt(in, i), from);
  switch (to) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(value);
    case DType::kF64:
      return std::bit_cast<uint64_t>(double{value});
    default:
      return Narrow(value, to);
  }
}

class CastTest : public KernelTableTest {
 protected:
  // Compares bit for bit: a conversion must keep its NaN.
  void Check(const Array& in, DType to, int64_t offset) {
    Array got(to, in.count(), offset);
    kernels().cast(got.data(), to, in.data(), in.dtype(), in.count());
    for (int64_t i = 0; i < in.count(); ++i) {
      const uint64_t want = Converted(in, i, to);
      ASSERT_EQ(BitsAt(got, i), want) << NameOf(in.dtype()) << " to " << NameOf(to) << ", element "
                                      << i << ": " << FloatAt(in, i);
    }
    EXPECT_TRUE(got.MarginsIntact());
  }
};

TEST_P(CastTest, EveryNarrowPatternConverts) {
  for (const DType from : kNarrow) {
    Array in(from, int64_t{1} << (8 * SizeOf(from)));
    for (int64_t i = 0; i < in.count(); ++i) {
      SizeOf(from) == 1 ? in.Set(i, static_cast<uint8_t>(i)) : in.Set(i, static_cast<uint16_t>(i));
    }
    for (const DType to : kTypes) {
      Check(in, to, 0);
    }
  }
}

// For each narrow value: the middle between it and the next value, and the values on both sides of
// this middle. These are the nearest f32, or an f64 that is nearer than any f32.
TEST_P(CastTest, FloatsAroundEveryTieRoundToEven) {
  for (const DType to : kNarrow) {
    const int64_t patterns = int64_t{1} << (8 * SizeOf(to));
    for (const DType from : {DType::kF32, DType::kF64}) {
      Array in(from, 4 * patterns);
      for (int64_t i = 0; i < patterns; ++i) {
        const double here = Widen(static_cast<uint64_t>(i), to);
        const bool last = (i & (patterns / 2 - 1)) == patterns / 2 - 1;
        const double next = last ? here : Widen(static_cast<uint64_t>(i + 1), to);
        const double middle = (here + next) / 2;
        const auto single = static_cast<float>(middle);
        const bool wide = from == DType::kF64;
        SetFloat(in, 4 * i, here);
        SetFloat(in, 4 * i + 1, middle);
        SetFloat(in, 4 * i + 2,
                 wide ? std::nextafter(middle, INFINITY) : std::nextafter(single, INFINITY));
        SetFloat(in, 4 * i + 3,
                 wide ? std::nextafter(middle, -INFINITY) : std::nextafter(single, -INFINITY));
      }
      Check(in, to, 0);
    }
  }
}

TEST_P(CastTest, OddLengthsAndStartsAgree) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 33, 511, 513, 1025}) {
        Array in(from, count, count % 5);
        Fill(in, random_);
        Check(in, to, count % 3);
      }
    }
  }
}

TEST_P(CastTest, DoublesRoundToFloatAndFloatsWidenExactly) {
  for (const int64_t count : {0, 1, 7, 16, 33, 515}) {
    Array doubles(DType::kF64, count, 1), floats(DType::kF32, count, 2), back(DType::kF64, count);
    Fill(doubles, random_);
    if (count > 1) {
      doubles.Set(1, 1.0 + 0x1p-24);  // the middle between two floats: to even
    }
    kernels().cast(floats.data(), DType::kF32, doubles.data(), DType::kF64, count);
    kernels().cast(back.data(), DType::kF64, floats.data(), DType::kF32, count);
    for (int64_t i = 0; i < count; ++i) {
      const auto want = static_cast<float>(doubles.At<double>(i));
      ASSERT_EQ(BitsAt(floats, i), std::bit_cast<uint32_t>(want)) << "element " << i;
      if (!std::isnan(want)) {
        ASSERT_EQ(back.At<double>(i), double{want}) << "element " << i;
      }
    }
    EXPECT_TRUE(floats.MarginsIntact() && back.MarginsIntact());
  }
}

TEST_P(CastTest, AccumulateAddsAsFloat) {
  for (const DType from : kTypes) {
    for (const int64_t count : {0, 1, 7, 16, 33, 515}) {
      Array in(from, count, 1), acc(DType::kF32, count, 3);
      Fill(in, random_);
      Fill(acc, random_);
      Array want = acc;
      for (int64_t i = 0; i < count; ++i) {
        want.Set(i, want.At<float>(i) + static_cast<float>(FloatAt(in, i)));
      }
      kernels().accumulate(acc.floats(), in.data(), from, count);
      EXPECT_TRUE(SameArrays(acc, want)) << NameOf(from) << " × " << count;
    }
  }
}

ENTRAIN_FOR_ALL_TABLES(CastTest);

}  // namespace
}  // namespace entrain
