// Arrays for kernel tests, of any element type, at any element-aligned address, with values that
// are difficult for loops.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "lib/base/dtype.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// `count` elements that begin `offset` elements after an aligned address. The memory around them
// must not change.
class Array {
 public:
  Array(DType dtype, int64_t count, int64_t offset = 0)
      : dtype_(dtype),
        count_(count),
        begin_(kMargin + offset * SizeOf(dtype)),
        bytes_(static_cast<size_t>(begin_ + count * SizeOf(dtype) + kMargin), std::byte{0xa5}) {}

  void* data() { return bytes_.data() + begin_; }
  const void* data() const { return bytes_.data() + begin_; }
  float* floats() { return static_cast<float*>(data()); }
  DType dtype() const { return dtype_; }
  int64_t count() const { return count_; }

  template <typename T>
  T At(int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + begin_ + i * int64_t{sizeof(T)}, sizeof(T));
    return value;
  }
  template <typename T>
  void Set(int64_t i, T value) {
    std::memcpy(bytes_.data() + begin_ + i * int64_t{sizeof(T)}, &value, sizeof(T));
  }
  bool MarginsIntact() const {
    const auto intact = [this](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        if (bytes_[static_cast<size_t>(i)] != std::byte{0xa5}) {
          return false;
        }
      }
      return true;
    };
    return intact(0, begin_) &&
           intact(begin_ + count_ * SizeOf(dtype_), static_cast<int64_t>(bytes_.size()));
  }

 private:
  static constexpr int64_t kMargin = 128;
  DType dtype_;
  int64_t count_, begin_;
  std::vector<std::byte> bytes_;
};

// Returns the bit pattern of element i. For pairs, mixes the bits of value and location.
inline uint64_t BitsAt(const Array& array, int64_t i) {
  if (array.dtype() == DType::kF64I64 || array.dtype() == DType::kI64I64) {
    return array.At<uint64_t>(2 * i) * 31 + array.At<uint64_t>(2 * i + 1);
  }
  switch (SizeOf(array.dtype())) {
    case 1:
      return array.At<uint8_t>(i);
    case 2:
      return array.At<uint16_t>(i);
    case 4:
      return array.At<uint32_t>(i);
    default:
      return array.At<uint64_t>(i);
  }
}

inline double FloatAt(const Array& array, int64_t i) {
  switch (array.dtype()) {
    case DType::kF32:
      return array.At<float>(i);
    case DType::kF64:
      return array.At<double>(i);
    case DType::kBF16:
      return BF16ToFloat(array.At<uint16_t>(i));
    case DType::kF16:
      return F16ToFloat(array.At<uint16_t>(i));
    case DType::kF8E4M3:
      return F8E4M3ToFloat(array.At<uint8_t>(i));
    case DType::kF8E5M2:
      return F8E5M2ToFloat(array.At<uint8_t>(i));
    default:
      return 0;
  }
}

inline void SetFloat(Array& array, int64_t i, double value) {
  switch (array.dtype()) {
    case DType::kF32:
      return array.Set(i, static_cast<float>(value));
    case DType::kF64:
      return array.Set(i, value);
    case DType::kBF16:
      return array.Set(i, FloatToBF16(static_cast<float>(value)));
    case DType::kF16:
      return array.Set(i, FloatToF16(static_cast<float>(value)));
    case DType::kF8E4M3:
      return array.Set(i, FloatToF8E4M3(static_cast<float>(value)));
    case DType::kF8E5M2:
      return array.Set(i, FloatToF8E5M2(static_cast<float>(value)));
    default:
      return;
  }
}

// A pair as the C ABI documents it.
template <typename T, typename L>
struct Located {
  T value;
  L location;
};

using Random = std::mt19937_64;

// Fills the array with values and locations, many of which are equal.
template <typename T, typename L>
void FillPairs(Array& array, Random& random) {
  constexpr double kValues[] = {-1, 0, 1, 7, 1, -0.0, INFINITY, NAN};
  for (int64_t i = 0; i < array.count(); ++i) {
    const uint64_t bits = random();
    const double value = kValues[bits % (std::is_integral_v<T> ? 5 : std::size(kValues))];
    array.Set(i, Located<T, L>{static_cast<T>(value), static_cast<L>(bits / 16 % 4)});
  }
}

// Fills the array with floats, mostly moderate values. Every eighth has random bits: NaN,
// infinities, subnormal numbers, zeros.
inline void Fill(Array& array, Random& random) {
  switch (array.dtype()) {
    case DType::kF32I32:
      return FillPairs<float, int32_t>(array, random);
    case DType::kF64I64:
      return FillPairs<double, int64_t>(array, random);
    case DType::kI32I32:
      return FillPairs<int32_t, int32_t>(array, random);
    case DType::kI64I64:
      return FillPairs<int64_t, int64_t>(array, random);
    default:
      break;
  }
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < array.count(); ++i) {
    const uint64_t bits = random();
    if (IsFloat(array.dtype()) && bits % 8 != 0) {
      SetFloat(array, i, normal(random));
    } else if (IsFloat(array.dtype()) && bits % 16 == 0) {
      constexpr double kHard[] = {0.0,   -0.0, INFINITY, -INFINITY, NAN,
                                  1e-40, 1e-7, 6e4,      3e38,      -3e38};
      SetFloat(array, i, kHard[bits / 16 % std::size(kHard)]);
    } else {
      switch (SizeOf(array.dtype())) {
        case 1:
          array.Set(i, static_cast<uint8_t>(bits >> 32));
          break;
        case 2:
          array.Set(i, static_cast<uint16_t>(bits >> 32));
          break;
        case 4:
          array.Set(i, static_cast<uint32_t>(bits >> 32));
          break;
        default:
          array.Set(i, random());
          break;
      }
    }
  }
}

// Fills an array of f32 with normal numbers.
inline void FillNormal(Array& x, Random& random) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < x.count(); ++i) {
    x.Set(i, normal(random));
  }
}

// Adds in the order that kernels.h promises on all machines: element i into sum i % 16, then a
// tree.
inline double ReferenceSquares(const Array& x) {
  double sums[16] = {};
  for (int64_t i = 0; i < x.count(); ++i) {
    const double value = x.At<float>(i);
    sums[i % 16] += value * value;
  }
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) {
      sums[i] += sums[i + stride];
    }
  }
  return sums[0];
}

// Returns whether both have the same bits, or both are NaN. Which of two NaN results is not
// specified.
inline bool Same(const Array& a, const Array& b, int64_t i) {
  return BitsAt(a, i) == BitsAt(b, i) ||
         (IsFloat(a.dtype()) && std::isnan(FloatAt(a, i)) && std::isnan(FloatAt(b, i)));
}

inline ::testing::AssertionResult SameArrays(const Array& got, const Array& want) {
  for (int64_t i = 0; i < want.count(); ++i) {
    if (!Same(got, want, i)) {
      return ::testing::AssertionFailure()
             << NameOf(want.dtype()) << " element " << i << " of " << want.count() << " is "
             << std::hex << BitsAt(got, i) << ", not " << BitsAt(want, i);
    }
  }
  if (!got.MarginsIntact()) {
    return ::testing::AssertionFailure() << "memory around the array has changed";
  }
  return ::testing::AssertionSuccess();
}

// A fixture whose parameter is a kernel table. Its tests run with every table that this machine
// supports.
class KernelTableTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  Random random_{20240229};
};

#if defined(ENTRAIN_TEST_STAGED)
// The table of a device instead of the processor's tables (tests/device/cuda).
const Kernels& StagedKernels();
inline std::vector<const Kernels*> TablesHere() {
  return {&StagedKernels()};
}
#else
inline std::vector<const Kernels*> TablesHere() {
  const KernelTables tables = AllKernels();
  return {tables.tables, tables.tables + tables.count};
}
#endif
inline std::string TableName(const ::testing::TestParamInfo<const Kernels*>& info) {
  return info.param->name;
}

}  // namespace entrain

#define ENTRAIN_FOR_ALL_TABLES(suite) \
  INSTANTIATE_TEST_SUITE_P(Tables, suite, ::testing::ValuesIn(TablesHere()), TableName)
