// The place of the arrays of an object's calls: host memory, where the CPU computes in the caller's
// thread, or a device, which computes on a stream.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "include/entrain/types.h"
#include "lib/base/clock.h"
#include "lib/device/device.h"

namespace entrain::api {

struct ArrayPlace {
  entrain_memory_t memory = ENTRAIN_MEMORY_HOST;
  void* stream = nullptr;
  int64_t limit_ns = kDefaultTimeoutNs;  // limit for a kernel that returns a number
};

// Accepts HOST without a stream, and DEVICE if the process's devices can be used. Returns an error
// for everything else.
absl::Status CheckArrayPlace(const ArrayPlace& place);

// Sets the stream for later calls. Returns FAILED_PRECONDITION for host memory.
absl::Status SetStream(void* stream, ArrayPlace* place);

struct NamedArray {
  const char* name;
  const void* array;
};

// Returns the device that holds `arrays`, or null if the place is host memory or all arrays are
// null. Returns INVALID_ARGUMENT, naming the array, if an array is in another place.
absl::StatusOr<Device*> DeviceOf(const ArrayPlace& place, absl::Span<const NamedArray> arrays);

// Runs `body` so that CurrentKernels, CopyArray and ZeroArray (lib/device/device.h) work on
// `arrays`. Returns INVALID_ARGUMENT, naming the array, if an array is in another place. Accepts
// null arrays.
absl::Status RunWhere(const ArrayPlace& place, absl::Span<const NamedArray> arrays,
                      absl::FunctionRef<void()> body);

}  // namespace entrain::api
