// Elements of every type as doubles, and their reductions by simple loops. The bits are converted
// here, not by the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <entrain/entrain.h>

namespace entrain_test {

// Returns false for the 8-bit floats, too, because these tests do not compute with them.
inline bool IsFloating(entrain_dtype_t dtype) {
  return dtype <= ENTRAIN_F16;
}

inline double HalfToDouble(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

// Only for normal numbers that the type holds exactly.
inline uint16_t DoubleToHalf(double value) {
  if (value == 0) {
    return 0;
  }
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto mantissa = static_cast<int>(std::lround(std::ldexp(fraction, 11))) - 1024;
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + mantissa);
}

template <typename T>
double LoadAs(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return static_cast<double>(value);
}
// Integers wrap around.
template <typename T>
void StoreAs(std::byte* at, double value) {
  T element;
  if constexpr (std::is_floating_point_v<T>) {
    element = static_cast<T>(value);
  } else {
    element = static_cast<T>(static_cast<int64_t>(value));
  }
  std::memcpy(at, &element, sizeof(T));
}

// An array of one element type.
class Elements {
 public:
  Elements(entrain_dtype_t dtype, size_t count)
      : dtype_(dtype), bytes_(entrain_dtype_size(dtype)), memory_(bytes_ * count + 1) {}
  void* data() { return memory_.data(); }
  const void* data() const { return memory_.data(); }
  void* at(size_t i) { return memory_.data() + i * bytes_; }
  void Set(size_t i, double value);
  double Get(size_t i) const;

 private:
  const entrain_dtype_t dtype_;
  const size_t bytes_;
  std::vector<std::byte> memory_;
};

inline void Elements::Set(size_t i, double value) {
  std::byte* at = memory_.data() + i * bytes_;
  switch (dtype_) {
    case ENTRAIN_F32:
      return StoreAs<float>(at, value);
    case ENTRAIN_F64:
      return StoreAs<double>(at, value);
    case ENTRAIN_F16:
      return StoreAs<uint16_t>(at, DoubleToHalf(value));
    case ENTRAIN_BF16: {
      const auto wide = static_cast<float>(value);
      std::memcpy(at, reinterpret_cast<const std::byte*>(&wide) + 2, 2);
      return;
    }
    case ENTRAIN_I8:
      return StoreAs<int8_t>(at, value);
    case ENTRAIN_I16:
      return StoreAs<int16_t>(at, value);
    case ENTRAIN_U16:
      return StoreAs<uint16_t>(at, value);
    case ENTRAIN_I32:
      return StoreAs<int32_t>(at, value);
    case ENTRAIN_U32:
      return StoreAs<uint32_t>(at, value);
    case ENTRAIN_I64:
      return StoreAs<int64_t>(at, value);
    case ENTRAIN_U64:
      return StoreAs<uint64_t>(at, value);
    default:
      return StoreAs<uint8_t>(at, value);  // u8, and the bits of 8-bit floats
  }
}

inline double Elements::Get(size_t i) const {
  const std::byte* at = memory_.data() + i * bytes_;
  switch (dtype_) {
    case ENTRAIN_F32:
      return LoadAs<float>(at);
    case ENTRAIN_F64:
      return LoadAs<double>(at);
    case ENTRAIN_F16: {
      uint16_t bits;
      std::memcpy(&bits, at, 2);
      return HalfToDouble(bits);
    }
    case ENTRAIN_BF16: {
      float wide = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&wide) + 2, at, 2);
      return wide;
    }
    case ENTRAIN_I8:
      return LoadAs<int8_t>(at);
    case ENTRAIN_I16:
      return LoadAs<int16_t>(at);
    case ENTRAIN_U16:
      return LoadAs<uint16_t>(at);
    case ENTRAIN_I32:
      return LoadAs<int32_t>(at);
    case ENTRAIN_U32:
      return LoadAs<uint32_t>(at);
    case ENTRAIN_I64:
      return LoadAs<int64_t>(at);
    case ENTRAIN_U64:
      return LoadAs<uint64_t>(at);
    default:
      return LoadAs<uint8_t>(at);
  }
}

// Returns the contribution of rank `rank` at element `i`: small whole numbers, also negative ones
// if the type has them. Every type holds them, and their sums and products over up to five ranks.
inline double Contribution(entrain_dtype_t dtype, entrain_op_t op, int rank, size_t i) {
  const auto base = static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5);
  const bool has_sign = IsFloating(dtype) || dtype == ENTRAIN_I8 || dtype == ENTRAIN_I16 ||
                        dtype == ENTRAIN_I32 || dtype == ENTRAIN_I64;
  if (op == ENTRAIN_PROD) {
    return base == 0 && has_sign ? -1 : 1 + base % 2;
  }
  return has_sign ? base - 2 : base;
}

// Returns the reduction of the contributions of `size` ranks at element `i`, in exact arithmetic.
inline double Reduced(entrain_dtype_t dtype, entrain_op_t op, int size, size_t i) {
  double result = Contribution(dtype, op, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = Contribution(dtype, op, rank, i);
    switch (op) {
      case ENTRAIN_PROD:
        result *= next;
        break;
      case ENTRAIN_MIN:
        result = std::min(result, next);
        break;
      case ENTRAIN_MAX:
        result = std::max(result, next);
        break;
      default:
        result += next;
        break;
    }
  }
  if (op == ENTRAIN_AVG) {
    result = IsFloating(dtype) ? result / size : std::trunc(result / size);
  }
  return result;
}

// Returns the largest error of a result. Only a mean of floats is rounded.
inline double Tolerance(entrain_dtype_t dtype, entrain_op_t op) {
  if (op != ENTRAIN_AVG || !IsFloating(dtype)) {
    return 0;
  }
  switch (dtype) {
    case ENTRAIN_F64:
      return 1e-15;
    case ENTRAIN_F32:
      return 5e-7;
    case ENTRAIN_F16:
      return 2e-3;
    default:
      return 2e-2;  // bf16
  }
}

}  // namespace entrain_test
