#include "lib/base/dtype.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace entrain {
namespace {

enum class Class : uint8_t { kFloat, kInteger, kPair };
struct Row {
  absl::string_view name;
  int64_t bytes;
  Class is;
};
// In the order of DType.
constexpr Row kRows[kDTypes] = {
    {"f32", 4, Class::kFloat},     {"f64", 8, Class::kFloat},     {"bf16", 2, Class::kFloat},
    {"f16", 2, Class::kFloat},     {"f8_e4m3", 1, Class::kFloat}, {"f8_e5m2", 1, Class::kFloat},
    {"i8", 1, Class::kInteger},    {"u8", 1, Class::kInteger},    {"i16", 2, Class::kInteger},
    {"u16", 2, Class::kInteger},   {"i32", 4, Class::kInteger},   {"u32", 4, Class::kInteger},
    {"i64", 8, Class::kInteger},   {"u64", 8, Class::kInteger},   {"f32_i32", 8, Class::kPair},
    {"f64_i64", 16, Class::kPair}, {"i32_i32", 8, Class::kPair},  {"i64_i64", 16, Class::kPair},
};

const Row& RowOf(DType dtype) {
  return kRows[static_cast<size_t>(dtype)];
}

}  // namespace

bool IsValid(DType dtype) {
  return static_cast<int32_t>(dtype) >= 0 && static_cast<int32_t>(dtype) < kDTypes;
}
int64_t SizeOf(DType dtype) {
  return IsValid(dtype) ? RowOf(dtype).bytes : 0;
}
absl::string_view NameOf(DType dtype) {
  return IsValid(dtype) ? RowOf(dtype).name : "?";
}
int64_t AlignmentOf(DType dtype) {
  return IsPair(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype);
}
bool IsFloat(DType dtype) {
  return IsValid(dtype) && RowOf(dtype).is == Class::kFloat;
}
bool IsInteger(DType dtype) {
  return IsValid(dtype) && RowOf(dtype).is == Class::kInteger;
}
bool IsPair(DType dtype) {
  return IsValid(dtype) && RowOf(dtype).is == Class::kPair;
}

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (kRows[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

uint16_t FloatToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN: keeps the upper bits of its payload, and becomes quiet
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000) {  // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  // Below the smallest normal f16: a subnormal, which is a multiple of 2^-24.
  if (magnitude < 0x38800000) {
    // The addition of 0.5 shifts the digits of the result to the end of the significand. It also
    // rounds the result to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13) |
                                (fraction != 0 ? 0x400000u : 0u));
  }
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint8_t FloatToF8E4M3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x43e80000) {  // above 464, halfway between 448 and the next value
    return static_cast<uint8_t>(sign | 0x7f);
  }
  // Below the smallest normal e4m3: a multiple of 2^-9, computed as in FloatToF16.
  if (magnitude < 0x3c800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000));
  }
  const uint32_t rounded = magnitude + 0x7ffff + ((magnitude >> 20) & 1);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000) >> 20));
}

float F8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t magnitude = bits & 0x7f;
  if (magnitude == 0x7f) {
    return std::bit_cast<float>(sign | 0x7ff00000);
  }
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + 0x3c000000));
}

uint8_t FloatToF8E5M2(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN: keeps the upper bits of its payload, and becomes quiet
    return static_cast<uint8_t>(sign | 0x7e | ((magnitude >> 21) & 3));
  }
  if (magnitude >= 0x47700000) {  // rounds to 65536 or more
    return static_cast<uint8_t>(sign | 0x7c);
  }
  if (magnitude < 0x38800000) {  // below the smallest normal e5m2: a multiple of 2^-16
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p7f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x43000000));
  }
  const uint32_t rounded = magnitude + 0xfffff + ((magnitude >> 21) & 1);
  return static_cast<uint8_t>(sign | ((rounded - 0x38000000) >> 21));
}

float F8E5M2ToFloat(uint8_t bits) {
  return F16ToFloat(static_cast<uint16_t>(bits << 8));
}

}  // namespace entrain
