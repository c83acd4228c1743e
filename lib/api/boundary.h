// The boundary between the C API and the C++ library. Every public function that can fail runs its
// body in Guard. Guard refuses calls in a forked child. It converts the absl::Status of the body to
// a code, and stores a failure as this thread's last error. The body computes in the floating-point
// environment of the library, because the caller's thread may have another one.
//
// Thread safety: any thread. Each thread has its own last error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "include/entrain/entrain.h"
#include "lib/base/callback_scope.h"
#include "lib/base/float_environment.h"
#include "lib/base/status.h"

namespace entrain::api {

using entrain::CallbackScope;
using entrain::Does;

// Says what a failure ends (entrain_error_t.scope). kByCode: the code decides whether the
// communicator has ended. kCall: only the call has failed, whatever the code.
enum class Reach { kByCode, kCall };

// Stores `status` (not OK) as this thread's last error and returns its code. If the text does not
// name an operation, puts `function` ("entrain_send") in front of it.
entrain_status_t Fail(const char* function, const absl::Status& status, Reach reach);

// Converts a status to a record. The status may be OK.
void ToRecord(const absl::Status& status, Reach reach, entrain_error_t* record);

// Returns the record of this thread's last failure.
const entrain_error_t& LastError();

// Returns FAILED_PRECONDITION in the child of a fork if the parent has used the library.
absl::Status CheckProcess();
bool Forked();

// Returns INVALID_ARGUMENT "`name` is NULL" if `pointer` is null.
inline absl::Status NotNull(const void* pointer, const char* name) {
  if (pointer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  }
  return absl::OkStatus();
}

// A field of more than 8 bytes, such as a text: bytes [begin, begin + bytes) of its struct.
struct LongField {
  size_t begin;
  size_t bytes;
};

// Copies a result struct to the caller's struct, which may have fewer or more fields. Writes the
// fields that both structs have. Does not change the caller's `size`. Refuses the sizes that
// CopyStruct refuses, and sizes that end inside one of `long_fields`. `long_fields` must list all
// long fields of the struct.
absl::Status WriteStruct(const void* known, size_t known_size, void* to, const char* name,
                         std::initializer_list<LongField> long_fields = {});

absl::Status WriteError(const entrain_error_t& known, entrain_error_t* to);

// Copies a text, cut to `bytes` bytes, with a zero byte at its end. `to` may be null.
void WriteText(absl::string_view text, char* to, size_t bytes);

// Writes the defaults of a struct to the caller's struct of `bytes` bytes. Writes the fields that
// both structs have, zeros after them, and `bytes` as the size. Does nothing for NULL, or if
// `bytes` is too small for the field `size`.
void WriteDefaults(const void* defaults, size_t known_size, void* to, size_t bytes);

// Runs `body`, which returns absl::Status, in the library's floating-point environment. Returns an error instead in a forked child. Also if the
// thread is inside a callback that must not call this kind of function. Guard reads `reach` after
// the body, because the body may change it.
template <typename Body>
entrain_status_t Guard(const char* function, const Reach& reach, Does does, const Body& body) {
  const FloatEnvironment environment;
  absl::Status status = CheckProcess();
  if (status.ok()) {
    status = CallbackScope::Check(does);
  }
  if (status.ok()) {
    status = body();
  }
  return status.ok() ? ENTRAIN_OK : Fail(function, status, reach);
}

template <typename Body>
entrain_status_t Guard(const char* function, Reach reach, const Body& body) {
  return Guard(function, reach, Does::kLook, body);
}

template <typename Body>
entrain_status_t Guard(const char* function, Does does, const Body& body) {
  return Guard(function, Reach::kByCode, does, body);
}

template <typename Body>
entrain_status_t Guard(const char* function, const Body& body) {
  return Guard(function, Reach::kByCode, body);
}

}  // namespace entrain::api
