// Element types: sizes, names, and scalar conversion of the 16-bit and 8-bit floats.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace entrain {

// The values are those of the C ABI (types.h).
enum class DType : int32_t {
  kF32 = 0,
  kF64,
  kBF16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  // Pairs of a value and its location. The value comes first. For minloc and maxloc.
  kF32I32,
  kF64I64,
  kI32I32,
  kI64I64,
};
constexpr int kDTypes = 18;

bool IsValid(DType dtype);
int64_t SizeOf(DType dtype);            // bytes of one element
int64_t AlignmentOf(DType dtype);       // SizeOf; for a pair, the alignment of each half
absl::string_view NameOf(DType dtype);  // "bf16"
std::optional<DType> DTypeFromName(absl::string_view name);
// Exactly one of these is true for a valid type.
bool IsFloat(DType dtype);
bool IsInteger(DType dtype);
bool IsPair(DType dtype);  // a value and a location

// The conversions to a narrower float round to nearest even. NaN stays NaN.
uint16_t FloatToBF16(float value);
float BF16ToFloat(uint16_t bits);
uint16_t FloatToF16(float value);
float F16ToFloat(uint16_t bits);
// The two formats of the OCP 8-bit floating point specification.
//   e4m3 has no infinity. Its largest number is 448. 0x7f and 0xff are NaN. A value that would
//   round to more than 448 becomes NaN.
//   e5m2 is the upper half of an f16, and has infinities. A value that would round to more than
//   57344 becomes infinite.
uint8_t FloatToF8E4M3(float value);
float F8E4M3ToFloat(uint8_t bits);
uint8_t FloatToF8E5M2(float value);
float F8E5M2ToFloat(uint8_t bits);

}  // namespace entrain
