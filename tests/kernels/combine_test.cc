// Kernels::combine, compared with one element at a time: all types and operators, up to nine
// sources, odd lengths, unaligned starts, in place.
#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/kernels/values.h"

namespace entrain {
namespace {

std::vector<DType> AllTypes() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypes; ++i) {
    types.push_back(static_cast<DType>(i));
  }
  return types;
}
constexpr DType kFloats[] = {DType::kF32, DType::kF64,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr ReduceOp kNumberOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax};

// Returns all operators except the average, which is a sum.
std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kBuiltinOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (op != ReduceOp::kAvg && CheckReduction(op, dtype).ok()) {
      ops.push_back(op);
    }
  }
  return ops;
}

// ---- The reference

template <typename T>
T ApplyFloat(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::isnan(a) || std::isnan(b) ? T{NAN} : (a < b ? a : b);
    case ReduceOp::kMax:
      return std::isnan(a) || std::isnan(b) ? T{NAN} : (a > b ? a : b);
    default:
      return a + b;
  }
}

// 128 bits hold every sum and product of two elements. The result is cut to the type, which wraps
// around.
template <typename T>
T ApplyInteger(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProd:
      return static_cast<T>(static_cast<__int128>(a) * b);
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kBitAnd:
      return static_cast<T>(a & b);
    case ReduceOp::kBitOr:
      return static_cast<T>(a | b);
    case ReduceOp::kBitXor:
      return static_cast<T>(a ^ b);
    default:
      return static_cast<T>(static_cast<__int128>(a) + b);
  }
}

using Sources = std::vector<Array>;

template <typename T>
void ReferenceFloat(ReduceOp op, Array& out, const Sources& in, int divide) {
  for (int64_t i = 0; i < out.count(); ++i) {
    T acc = static_cast<T>(FloatAt(in[0], i));
    for (size_t j = 1; j < in.size(); ++j) {
      acc = ApplyFloat(op, acc, static_cast<T>(FloatAt(in[j], i)));
    }
    SetFloat(out, i, divide > 1 ? acc / static_cast<T>(divide) : acc);
  }
}

template <typename T>
void ReferenceInteger(ReduceOp op, Array& out, const Sources& in, int divide) {
  for (int64_t i = 0; i < out.count(); ++i) {
    T acc = in[0].At<T>(i);
    __int128 sum = acc;
    for (size_t j = 1; j < in.size(); ++j) {
      acc = ApplyInteger(op, acc, in[j].At<T>(i));
      sum += in[j].At<T>(i);
    }
    out.Set(i, divide > 1 ? static_cast<T>(sum / divide) : acc);
  }
}

bool IsLogical(ReduceOp op) {
  return op == ReduceOp::kLogicalAnd || op == ReduceOp::kLogicalOr || op == ReduceOp::kLogicalXor;
}

bool IsTrue(const Array& x, int64_t i) {
  return IsFloat(x.dtype()) ? FloatAt(x, i) != 0 : BitsAt(x, i) != 0;
}

void ReferenceTruth(ReduceOp op, Array& out, const Sources& in) {
  for (int64_t i = 0; i < out.count(); ++i) {
    int holding = 0;
    for (const Array& x : in) {
      holding += IsTrue(x, i) ? 1 : 0;
    }
    const bool all = holding == static_cast<int>(in.size());
    const bool result = op == ReduceOp::kLogicalAnd  ? all
                        : op == ReduceOp::kLogicalOr ? holding > 0
                                                     : holding % 2 == 1;
    std::memset(static_cast<char*>(out.data()) + i * SizeOf(out.dtype()), 0,
                static_cast<size_t>(SizeOf(out.dtype())));
    if (result && IsFloat(out.dtype())) {
      SetFloat(out, i, 1);
    } else if (result) {
      out.Set(i * SizeOf(out.dtype()), uint8_t{1});  // the lowest byte
    }
  }
}

// Reference by sorting: NaN first, then by value, then by location. Of equal pairs the first source
// counts.
template <typename T, typename L>
void ReferenceLocated(ReduceOp op, Array& out, const Sources& in) {
  for (int64_t i = 0; i < out.count(); ++i) {
    std::vector<Located<T, L>> pairs;
    for (const Array& x : in) {
      pairs.push_back(x.At<Located<T, L>>(i));
    }
    std::stable_sort(pairs.begin(), pairs.end(), [op](const auto& a, const auto& b) {
      const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
      if (a_nan != b_nan) {
        return a_nan;
      }
      if (!a_nan && a.value != b.value) {
        return (a.value < b.value) == (op == ReduceOp::kMinLoc);
      }
      return a.location < b.location;
    });
    out.Set(i, pairs[0]);
  }
}

void Reference(ReduceOp op, Array& out, const Sources& in, int divide) {
  if (IsLogical(op)) {
    return ReferenceTruth(op, out, in);
  }
  switch (out.dtype()) {
    case DType::kF32I32:
      return ReferenceLocated<float, int32_t>(op, out, in);
    case DType::kF64I64:
      return ReferenceLocated<double, int64_t>(op, out, in);
    case DType::kI32I32:
      return ReferenceLocated<int32_t, int32_t>(op, out, in);
    case DType::kI64I64:
      return ReferenceLocated<int64_t, int64_t>(op, out, in);
    case DType::kF64:
      return ReferenceFloat<double>(op, out, in, divide);
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return ReferenceFloat<float>(op, out, in, divide);
    case DType::kI8:
      return ReferenceInteger<int8_t>(op, out, in, divide);
    case DType::kU8:
      return ReferenceInteger<uint8_t>(op, out, in, divide);
    case DType::kI16:
      return ReferenceInteger<int16_t>(op, out, in, divide);
    case DType::kU16:
      return ReferenceInteger<uint16_t>(op, out, in, divide);
    case DType::kI32:
      return ReferenceInteger<int32_t>(op, out, in, divide);
    case DType::kU32:
      return ReferenceInteger<uint32_t>(op, out, in, divide);
    case DType::kI64:
      return ReferenceInteger<int64_t>(op, out, in, divide);
    case DType::kU64:
      return ReferenceInteger<uint64_t>(op, out, in, divide);
  }
}

// ---- The suite

// The place of the result: separate memory (-1), or this source.
struct Case {
  DType dtype;
  ReduceOp op;
  int n;
  int64_t count;
  int64_t offset;
  int in_place;
  int divide;
};

class CombineTest : public KernelTableTest {
 protected:
  void Check(const Case& c) {
    SCOPED_TRACE(absl::StrCat(NameOf(c.op), " of ", c.n, " × ", c.count, " ", NameOf(c.dtype),
                              ", offset ", c.offset, ", in place ", c.in_place, ", divide ",
                              c.divide));
    Sources sources;
    for (int j = 0; j < c.n; ++j) {
      sources.emplace_back(c.dtype, c.count, c.offset * (j + 1));
      Fill(sources.back(), random_);
    }
    Array want(c.dtype, c.count);
    Reference(c.op, want, sources, c.divide);
    const Sources before = sources;
    Array apart(c.dtype, c.count, c.offset);
    std::vector<const void*> pointers;
    for (const Array& source : sources) {
      pointers.push_back(source.data());
    }
    Array& out = c.in_place < 0 ? apart : sources[static_cast<size_t>(c.in_place)];
    kernels().combine(c.op, c.dtype, out.data(), pointers.data(), c.n, c.count, c.divide);
    EXPECT_TRUE(SameArrays(out, want));
    for (int j = 0; j < c.n; ++j) {
      if (j != c.in_place) {
        EXPECT_TRUE(SameArrays(sources[static_cast<size_t>(j)], before[static_cast<size_t>(j)]));
      }
    }
  }
};

TEST_P(CombineTest, OfTwoAgreesAtEveryLength) {
  for (const DType dtype : AllTypes()) {
    for (const ReduceOp op : OpsOf(dtype)) {
      for (int64_t count = 0; count < 70; ++count) {
        Check({dtype, op, 2, count, count % 3, static_cast<int>(count % 3) - 1, 1});
      }
      Check({dtype, op, 2, 1023, 1, -1, 1});
    }
  }
}

TEST_P(CombineTest, OfOneToNineAgrees) {
  for (const DType dtype : AllTypes()) {
    for (const ReduceOp op : OpsOf(dtype)) {
      for (int n = 1; n <= 9; ++n) {
        for (const int64_t count : {1, 17, 512, 1037}) {
          Check({dtype, op, n, count, n % 2, -1, 1});
          if (op == ReduceOp::kSum) {  // only sums are divided
            Check({dtype, op, n, count, n % 2, -1, n});
          }
        }
      }
    }
  }
}

// Long enough that sources are prefetched, and that narrower registers are used.
TEST_P(CombineTest, OfMuchFromAnyStartAgrees) {
  for (const DType dtype : AllTypes()) {
    const int64_t count = 32768 / SizeOf(dtype) + 100;
    for (const ReduceOp op : OpsOf(dtype)) {
      for (const int64_t offset : {0, 1, 7}) {
        Check({dtype, op, 2, count, offset, -1, 1});
        Check({dtype, op, 3, count, offset, 1, 1});
      }
    }
    if (CheckReduction(ReduceOp::kAvg, dtype).ok()) {
      for (const int divide : {2, 3, 4, 64, 100}) {
        Check({dtype, ReduceOp::kSum, 2, count, 1, 0, divide});
      }
    }
  }
}

// A device has its own rules for NaN. The fake device has those of a compiler.
#if !defined(ENTRAIN_TEST_STAGED)
Array Holding(DType dtype, int64_t count, int64_t offset, const std::vector<std::byte>& bits) {
  Array array(dtype, count, offset);
  std::memcpy(array.data(), bits.data(), bits.size());
  return array;
}

// If two NaN meet, the instruction determines which one results. Ranks whose buffers begin at other
// offsets must get the same one.
TEST_P(CombineTest, OfTwoNaNTheSameOneStaysFromAnyStart) {
  for (const DType dtype : kFloats) {
    const int64_t bytes = SizeOf(dtype);
    for (const int64_t count : {int64_t{70}, 4096 / bytes + 5, 32768 / bytes + 100}) {
      std::vector<std::byte> bits[2];
      for (auto& one : bits) {
        for (int64_t i = 0; i < count * bytes; ++i) {
          // The last byte of an element has the sign and the first bits of the exponent. The byte
          // before it has the other exponent bits.
          const int64_t behind = bytes - 1 - i % bytes;
          const unsigned exponent = behind == 0 ? 0x7f : behind == 1 ? 0xf0 : 0;
          one.push_back(static_cast<std::byte>(exponent | (random_() & 0xff)));
        }
      }
      for (const auto& [op, divide] :
           {std::pair(ReduceOp::kSum, 1), std::pair(ReduceOp::kSum, 2),
            std::pair(ReduceOp::kSum, 3), std::pair(ReduceOp::kProd, 1),
            std::pair(ReduceOp::kMin, 1), std::pair(ReduceOp::kMax, 1)}) {
        Array first(dtype, count);
        for (const int64_t offset : {0, 1, 7, 16}) {
          const Array a = Holding(dtype, count, offset, bits[0]);
          const Array b = Holding(dtype, count, 2 * offset, bits[1]);
          Array out(dtype, count, 3 * offset);
          const void* const sources[] = {a.data(), b.data()};
          kernels().combine(op, dtype, out.data(), sources, 2, count, divide);
          if (offset == 0) {
            first = out;
          }
          EXPECT_EQ(std::memcmp(out.data(), first.data(), static_cast<size_t>(count * bytes)), 0)
              << NameOf(op) << " of " << count << " " << NameOf(dtype) << ", divide " << divide
              << ", offset " << offset;
        }
      }
    }
  }
}
#endif

// Every number of 16 bits, each combined with some of the other numbers.
TEST_P(CombineTest, SumsAndProductsOfSmallFloatsAreRoundedOnce) {
  constexpr int64_t kNumbers = 1 << 16;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      Sources in(2, Array(dtype, kNumbers));
      for (int64_t i = 0; i < kNumbers; ++i) {
        in[0].Set(i, static_cast<uint16_t>(i));
      }
      for (int round = 0; round < 8; ++round) {
        const uint64_t by = random_() | 1, plus = random_();
        for (int64_t i = 0; i < kNumbers; ++i) {  // each number once
          in[1].Set(i, static_cast<uint16_t>(static_cast<uint64_t>(i) * by + plus));
        }
        Array want(dtype, kNumbers), got(dtype, kNumbers);
        Reference(op, want, in, 1);
        const void* const pointers[] = {in[0].data(), in[1].data()};
        kernels().combine(op, dtype, got.data(), pointers, 2, kNumbers, 1);
        ASSERT_TRUE(SameArrays(got, want)) << NameOf(op) << " of " << NameOf(dtype);
      }
    }
  }
}

TEST_P(CombineTest, IntoAnyOfItsSourcesAgrees) {
  for (const DType dtype : AllTypes()) {
    for (const ReduceOp op : OpsOf(dtype)) {
      for (int n = 1; n <= 5; ++n) {
        for (int in_place = 0; in_place < n; ++in_place) {
          Check({dtype, op, n, 601, 1, in_place, 1});
          if (op == ReduceOp::kSum) {
            Check({dtype, op, n, 601, 0, in_place, 7});
          }
        }
      }
    }
  }
}

TEST_P(CombineTest, SumAndAverageAreOneLoop) {
  Sources in(2, Array(DType::kF32, 100));
  Fill(in[0], random_);
  Fill(in[1], random_);
  const void* const pointers[] = {in[0].data(), in[1].data()};
  Array sum(DType::kF32, 100), average(DType::kF32, 100);
  kernels().combine(ReduceOp::kSum, DType::kF32, sum.data(), pointers, 2, 100, 2);
  kernels().combine(ReduceOp::kAvg, DType::kF32, average.data(), pointers, 2, 100, 2);
  EXPECT_TRUE(SameArrays(average, sum));
}

// All dividends of the small types. For the larger types, which are divided in floating point,
// dividends around multiples.
TEST_P(CombineTest, IntegerAveragesTruncateTowardZero) {
  for (const int divisor : {2, 3, 5, 7, 8, 9, 16, 17, 100, 255, 1000, 4096, 65535, 1 << 30}) {
    for (const DType dtype : {DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32,
                              DType::kU32, DType::kI64, DType::kU64}) {
      SCOPED_TRACE(absl::StrCat(NameOf(dtype), " / ", divisor));
      Sources in(1, Array(dtype, 1 << 16));
      for (int64_t i = 0; i < in[0].count(); ++i) {
        const uint64_t near =
            random_() / static_cast<uint64_t>(divisor) * static_cast<uint64_t>(divisor) +
            static_cast<uint64_t>(i % 3 - 1);
        const uint64_t small =
            static_cast<uint64_t>(i * divisor) + static_cast<uint64_t>(i % 3 - 1);
        switch (SizeOf(dtype)) {
          case 1:
            in[0].Set(i, static_cast<uint8_t>(i));
            break;
          case 2:
            in[0].Set(i, static_cast<uint16_t>(i));
            break;
          case 4:
            in[0].Set(i, static_cast<uint32_t>(small));
            break;
          default:
            in[0].Set(i, near);
            break;
        }
      }
      Array want(dtype, 1 << 16), got(dtype, 1 << 16);
      Reference(ReduceOp::kSum, want, in, divisor);
      const void* const pointer = in[0].data();
      kernels().combine(ReduceOp::kSum, dtype, got.data(), &pointer, 1, got.count(), divisor);
      ASSERT_TRUE(SameArrays(got, want));
    }
  }
}

TEST_P(CombineTest, ANaNInAnyContributionGivesNaN) {
  for (const DType dtype : kFloats) {
    for (const ReduceOp op : kNumberOps) {
      for (int n = 2; n <= 4; ++n) {
        for (int bad = 0; bad < n; ++bad) {
          Sources in(static_cast<size_t>(n), Array(dtype, 37));
          std::vector<const void*> pointers;
          for (int j = 0; j < n; ++j) {
            for (int64_t i = 0; i < 37; ++i) {
              SetFloat(in[static_cast<size_t>(j)], i, j == bad ? NAN : 1.0 + j);
            }
            pointers.push_back(in[static_cast<size_t>(j)].data());
          }
          Array out(dtype, 37);
          kernels().combine(op, dtype, out.data(), pointers.data(), n, 37, 1);
          for (int64_t i = 0; i < 37; ++i) {
            ASSERT_TRUE(std::isnan(FloatAt(out, i)))
                << NameOf(op) << " " << NameOf(dtype) << " source " << bad << " of " << n;
          }
        }
      }
    }
  }
}

// 2048 + 1 + 1 in f16 is 2050 if rounded once, and 2048 if rounded after each addition.
TEST_P(CombineTest, SixteenBitFloatsRoundOnce) {
  Sources in(3, Array(DType::kF16, 20));
  for (int64_t i = 0; i < 20; ++i) {
    SetFloat(in[0], i, 2048);
    SetFloat(in[1], i, 1);
    SetFloat(in[2], i, 1);
  }
  const void* const pointers[] = {in[0].data(), in[1].data(), in[2].data()};
  Array out(DType::kF16, 20);
  kernels().combine(ReduceOp::kSum, DType::kF16, out.data(), pointers, 3, 20, 1);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(FloatAt(out, i), 2050);
  }
}

// Every 16-bit pattern with its neighbours: ties, overflow, NaN between numbers.
TEST_P(CombineTest, EveryPatternAddsAsItDoesAlone) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Sources in(2, Array(dtype, 1 << 16));
    for (const int other : {0x0000, 0x0001, 0x3f81, 0x3380, 0x7f7f, 0x7c01, 0x8001, 0xff80}) {
      for (int64_t i = 0; i < 1 << 16; ++i) {
        in[0].Set(i, static_cast<uint16_t>(i));
        in[1].Set(i, static_cast<uint16_t>(other));
      }
      const void* const pointers[] = {in[0].data(), in[1].data()};
      Array want(dtype, 1 << 16), got(dtype, 1 << 16);
      Reference(ReduceOp::kSum, want, in, 1);
      kernels().combine(ReduceOp::kSum, dtype, got.data(), pointers, 2, 1 << 16, 1);
      ASSERT_TRUE(SameArrays(got, want)) << NameOf(dtype) << " + " << other;
    }
  }
}

TEST_P(CombineTest, EveryPairOfEightBitFloatsAgrees) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    Sources in(2, Array(dtype, 1 << 16));
    for (int64_t i = 0; i < 1 << 16; ++i) {
      in[0].Set(i, static_cast<uint8_t>(i));
      in[1].Set(i, static_cast<uint8_t>(i >> 8));
    }
    const void* const pointers[] = {in[0].data(), in[1].data()};
    for (const ReduceOp op : OpsOf(dtype)) {
      Array want(dtype, 1 << 16), got(dtype, 1 << 16);
      Reference(op, want, in, 1);
      kernels().combine(op, dtype, got.data(), pointers, 2, 1 << 16, 1);
      ASSERT_TRUE(SameArrays(got, want)) << NameOf(op) << " " << NameOf(dtype);
    }
  }
}

// 16 + 1 + 1 in e4m3, whose numbers are 2 apart there, like the test of f16 above.
TEST_P(CombineTest, EightBitFloatsRoundOnce) {
  Sources in(3, Array(DType::kF8E4M3, 40));
  for (int64_t i = 0; i < 40; ++i) {
    SetFloat(in[0], i, 16);
    SetFloat(in[1], i, 1);
    SetFloat(in[2], i, 1);
  }
  const void* const pointers[] = {in[0].data(), in[1].data(), in[2].data()};
  Array out(DType::kF8E4M3, 40);
  kernels().combine(ReduceOp::kSum, DType::kF8E4M3, out.data(), pointers, 3, 40, 1);
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(FloatAt(out, i), 18);
  }
}

TEST_P(CombineTest, ANaNIsTrueAndMinusZeroIsFalse) {
  for (const DType dtype : kFloats) {
    Sources in(2, Array(dtype, 2));
    for (int64_t i = 0; i < 2; ++i) {
      SetFloat(in[0], i, i == 0 ? NAN : -0.0);
      SetFloat(in[1], i, 2);
    }
    const void* const pointers[] = {in[0].data(), in[1].data()};
    Array out(dtype, 2);
    kernels().combine(ReduceOp::kLogicalAnd, dtype, out.data(), pointers, 2, 2, 1);
    EXPECT_EQ(FloatAt(out, 0), 1) << NameOf(dtype);
    EXPECT_EQ(FloatAt(out, 1), 0) << NameOf(dtype);
  }
}

ENTRAIN_FOR_ALL_TABLES(CombineTest);

TEST(KernelTables, BaseComesFirstAndTheBestLast) {
  const KernelTables tables = AllKernels();
  ASSERT_GE(tables.count, 1);
  EXPECT_STREQ(tables.tables[0]->name, "base");
  EXPECT_EQ(&BestKernels(), tables.tables[tables.count - 1]);
}

}  // namespace
}  // namespace entrain
