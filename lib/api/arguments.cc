#include "lib/api/arguments.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "include/entrain/comm.h"
#include "lib/base/status.h"

namespace entrain::api {

bool IsOp(entrain_op_t op) {
  return IsBuiltin(ReduceOp{op});
}

absl::Status CheckDType(entrain_dtype_t dtype) {
  if (!IsValid(DType{dtype})) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", dtype, " is not an element type"));
  }
  return absl::OkStatus();
}

absl::Status CheckF32(entrain_dtype_t dtype, const char* only) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  if (dtype != ENTRAIN_F32) {
    return absl::UnimplementedError(
        absl::StrCat("dtype ", NameOf(DType{dtype}), ": ", only, " in this version"));
  }
  return absl::OkStatus();
}

absl::Status CheckConvertible(entrain_dtype_t dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  if (dtype != ENTRAIN_F32 && dtype != ENTRAIN_F64 && dtype != ENTRAIN_BF16 &&
      dtype != ENTRAIN_F16) {
    return absl::UnimplementedError(
        absl::StrCat("dtype ", NameOf(DType{dtype}),
                     ": parameters are converted from and to f32, f64, bf16, f16"));
  }
  return absl::OkStatus();
}

absl::Status CheckSwitch(const char* name, int32_t value) {
  if (value != 0 && value != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", value, " is neither 0 (off) nor 1 (on)"));
  }
  return absl::OkStatus();
}

absl::Status CheckChoice(const char* name, int32_t value, int32_t last, const char* values) {
  return value >= 0 && value <= last ? absl::OkStatus()
                                     : absl::InvalidArgumentError(absl::StrCat(
                                           name, " ", value, " is not an ", values, " value"));
}

absl::StatusOr<Determinism> CheckDeterminism(const char* name, int32_t value) {
  static_assert(ENTRAIN_DETERMINISM_RANK_ORDER == static_cast<int>(Determinism::kRankOrder));
  if (value < ENTRAIN_DETERMINISM_DEFAULT || value > ENTRAIN_DETERMINISM_RANK_ORDER) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", value, " is not an ENTRAIN_DETERMINISM_* value"));
  }
  return static_cast<Determinism>(value);
}

absl::Status CheckReserved(const char* name, int32_t value) {
  return value == 0 ? absl::OkStatus()
                    : absl::InvalidArgumentError(absl::StrCat(name, " ", value, " is not 0"));
}

absl::Status CheckName(absl::string_view name) {
  constexpr size_t kMost = 128;
  return !name.empty() && name.size() <= kMost
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("name has ", name.size(), " bytes, allowed are 1 to ", kMost));
}

absl::Status CheckRank(const char* name, int32_t rank, int size) {
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", rank, " is not a rank of ", size, " (0 to ", size - 1, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckCount(size_t count, DType dtype, int64_t parts) {
  const auto most =
      static_cast<size_t>(std::numeric_limits<int64_t>::max() / (SizeOf(dtype) * parts));
  if (count > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("count ", count, " is more ", NameOf(dtype), " elements than ", parts,
                     parts == 1 ? " buffer" : " ranks' parts", " can have"));
  }
  return static_cast<int64_t>(count);
}

absl::Status CheckBuffer(const char* name, const void* buffer, int64_t bytes, DType dtype) {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  if (buffer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is NULL, expected a buffer of ", bytes, " bytes"));
  }
  const auto address = reinterpret_cast<uintptr_t>(buffer);
  if (address % static_cast<uintptr_t>(AlignmentOf(dtype)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", absl::Hex(address),
                                                   " is not aligned to the ", AlignmentOf(dtype),
                                                   " bytes of ", NameOf(dtype)));
  }
  if (address + static_cast<uintptr_t>(bytes) < address) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", absl::Hex(address), " with ", bytes,
                                                   " bytes reaches past the end of memory"));
  }
  return absl::OkStatus();
}

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && first < second + static_cast<uintptr_t>(b_bytes) &&
         second < first + static_cast<uintptr_t>(a_bytes);
}

absl::StatusOr<CallKind> CollectiveFromName(absl::string_view name) {
  if (const auto kind = entrain::CollectiveFromName(name)) {
    return *kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("collective \"", name, "\" is not one of ", CollectiveNames()));
}

}  // namespace entrain::api
