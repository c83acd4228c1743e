// Conversions between the float types, against lib/base/dtype one element at a time.
#include "tests/kernels/values.h"

namespace entrain {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Without a detour through double, which would quiet a signalling NaN.
uint32_t Converted(const Array& in, int64_t i, DType to) {
  if (to == in.dtype()) {
    return static_cast<uint32_t>(BitsAt(in, i));
  }
  const float value = in.dtype() == DType::kF32    ? in.At<float>(i)
                      : in.dtype() == DType::kBF16 ? BF16ToFloat(in.At<uint16_t>(i))
                                                   : F16ToFloat(in.At<uint16_t>(i));
  switch (to) {
    case DType::kBF16:
      return FloatToBF16(value);
    case DType::kF16:
      return FloatToF16(value);
    default:
      return std::bit_cast<uint32_t>(value);
  }
}

class CastTest : public KernelTableTest {
 protected:
  // Bit for bit: a conversion has one NaN to keep.
  void Check(const Array& in, DType to, int64_t offset) {
    Array got(to, in.count(), offset);
    kernels().cast(got.data(), to, in.data(), in.dtype(), in.count());
    for (int64_t i = 0; i < in.count(); ++i) {
      const uint32_t want = Converted(in, i, to);
      ASSERT_EQ(BitsAt(got, i), want) << NameOf(in.dtype()) << " to " << NameOf(to) << ", element "
                                      << i << ": " << FloatAt(in, i);
    }
    EXPECT_TRUE(got.MarginsIntact());
  }
};

TEST_P(CastTest, EverySixteenBitPatternConverts) {
  for (const DType from : {DType::kBF16, DType::kF16}) {
    Array in(from, 1 << 16);
    for (int64_t i = 0; i < in.count(); ++i) {
      in.Set(i, static_cast<uint16_t>(i));
    }
    for (const DType to : kTypes) {
      Check(in, to, 0);
    }
  }
}

// Each 16-bit value, the middle between it and the next, and the f32 values on both sides of that
// middle.
TEST_P(CastTest, FloatsAroundEveryTieRoundToEven) {
  for (const DType to : {DType::kBF16, DType::kF16}) {
    const auto value = [to](int64_t bits) {
      return to == DType::kBF16 ? BF16ToFloat(static_cast<uint16_t>(bits))
                                : F16ToFloat(static_cast<uint16_t>(bits));
    };
    Array in(DType::kF32, 4 << 16);
    for (int64_t i = 0; i < 1 << 16; ++i) {
      const float here = value(i);
      const float next = (i & 0x7fff) == 0x7fff ? here : value(i + 1);
      const auto middle = static_cast<float>((double{here} + double{next}) / 2);
      in.Set(4 * i, here);
      in.Set(4 * i + 1, middle);
      in.Set(4 * i + 2, std::nextafter(middle, INFINITY));
      in.Set(4 * i + 3, std::nextafter(middle, -INFINITY));
    }
    Check(in, to, 0);
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
  for (const DType from : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
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
