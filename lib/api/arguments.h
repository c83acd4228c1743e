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

// Returns true for a built-in operator.
bool IsOp(entrain_op_t op);

absl::Status CheckDType(entrain_dtype_t dtype);
// Returns UNIMPLEMENTED for element types other than f32, f64, bf16 and f16. The kernels convert
// only these to and from f32.
absl::Status CheckConvertible(entrain_dtype_t dtype);
// Returns UNIMPLEMENTED for element types other than f32: "dtype bf16: `only`; ...".
absl::Status CheckF32(entrain_dtype_t dtype, const char* only);
// Returns INVALID_ARGUMENT for values other than 0 and 1.
absl::Status CheckSwitch(const char* name, int32_t value);
// Checks a value of an enumeration from 0 to `last`. Error: "`name` 7 is not an `values` value".
absl::Status CheckChoice(const char* name, int32_t value, int32_t last, const char* values);
absl::StatusOr<Determinism> CheckDeterminism(const char* name, int32_t value);
// Returns INVALID_ARGUMENT for values other than 0.
absl::Status CheckReserved(const char* name, int32_t value);
// Checks the name of a communicator: 1 to 128 bytes.
absl::Status CheckName(absl::string_view name);
absl::Status CheckRank(const char* name, int32_t rank, int size);

// Returns `count` as int64_t, or INVALID_ARGUMENT if the bytes of `parts` times `count` elements
// exceed int64_t. So a negative number that was converted to size_t is refused.
absl::StatusOr<int64_t> CheckCount(size_t count, DType dtype, int64_t parts);

// Checks a buffer of `bytes` bytes. It must be aligned to its element type and lie within the
// address space. It may be NULL only if it is empty.
absl::Status CheckBuffer(const char* name, const void* buffer, int64_t bytes, DType dtype);

// Returns true if the two ranges overlap.
bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes);

// Converts a name such as "all_reduce" to the kind. Accepts only kinds that have algorithms.
absl::StatusOr<CallKind> CollectiveFromName(absl::string_view name);

}  // namespace entrain::api
