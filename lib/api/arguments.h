// Checks of single arguments. Each error names the argument and its value in one line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "include/entrain/types.h"
#include "lib/base/call.h"
#include "lib/base/dtype.h"

namespace entrain::api {

// A built-in operator.
bool IsOp(entrain_op_t op);

absl::Status CheckDType(entrain_dtype_t dtype);
// UNIMPLEMENTED for element types that the float kernels cannot convert to or from f32.
absl::Status CheckConvertible(entrain_dtype_t dtype);
// UNIMPLEMENTED for element types other than f32: "dtype bf16: `only`; ...".
absl::Status CheckF32(entrain_dtype_t dtype, const char* only);
// INVALID_ARGUMENT for anything but 0 and 1.
absl::Status CheckSwitch(const char* name, int32_t value);
// Of an enumeration whose values are 0 to `last`: "name 7 is not an `values` value".
absl::Status CheckChoice(const char* name, int32_t value, int32_t last, const char* values);
absl::StatusOr<Determinism> CheckDeterminism(const char* name, int32_t value);
// INVALID_ARGUMENT for anything but 0.
absl::Status CheckReserved(const char* name, int32_t value);
absl::Status CheckRank(const char* name, int32_t rank, int size);

// `count` as the library counts, when `parts` times as many elements can be addressed: a negative
// number that became a size_t cannot.
absl::StatusOr<int64_t> CheckCount(size_t count, DType dtype, int64_t parts);

// A buffer of `bytes` bytes: not NULL (unless empty), aligned to its element type, not around the
// end of memory.
absl::Status CheckBuffer(const char* name, const void* buffer, int64_t bytes, DType dtype);

// Whether two ranges share a byte.
bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes);

// "all_reduce" and so on, to the kind. Only what has an algorithm.
absl::StatusOr<CallKind> CollectiveFromName(absl::string_view name);

}  // namespace entrain::api
