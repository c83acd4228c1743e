// Where the arrays of an object's calls lie: in host memory or on a device. For host memory the
// calling thread computes. A device computes on a stream.
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
#include "lib/base/dtype.h"
#include "lib/device/device.h"

namespace entrain::api {

struct ArrayPlace {
  entrain_memory_t memory = ENTRAIN_MEMORY_HOST;
  void* stream = nullptr;
  int64_t limit_ns = kDefaultTimeoutNs;  // time limit of a call that waits for the stream
};

// Accepts HOST without a stream. Accepts DEVICE if this process can use a device. Otherwise returns
// an error.
absl::Status CheckArrayPlace(const ArrayPlace& place);

// Sets the stream for later calls. Returns FAILED_PRECONDITION for host memory.
absl::Status SetStream(void* stream, ArrayPlace* place);

struct NamedArray {
  const char* name;
  const void* array;
};

// Returns the device that holds `arrays`. Returns null if `place` is host memory or all arrays are
// null. Returns INVALID_ARGUMENT if an array is not on this device; the text names the array.
absl::StatusOr<Device*> DeviceOf(const ArrayPlace& place, absl::Span<const NamedArray> arrays);

// As CheckBuffer. Besides, returns INVALID_ARGUMENT if the buffer is memory of a device. Does not
// initialise a driver: if this process does not use one, no buffer is memory of a device.
absl::Status CheckHostBuffer(const char* name, const void* buffer, int64_t bytes, DType dtype);

// Runs `body`. Inside it, CurrentKernels and CopyArray (lib/device/device.h) work on the device of
// `arrays`, or on the host. When RunWhere returns, work on the host is done, and work on a device
// is enqueued on the stream. Returns the first error of the device. Errors and null arrays: as for
// DeviceOf. Calls must not be nested.
absl::Status RunWhere(const ArrayPlace& place, absl::Span<const NamedArray> arrays,
                      absl::FunctionRef<void()> body);

}  // namespace entrain::api
