// Functions with which training objects wait for work that they have enqueued on a device.
//
// Thread safety: one thread at a time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/device/arrays.h"

namespace entrain {

// Blocks until the device has reached the mark. Calls `may_go_on` repeatedly; if it returns an
// error, returns this error at once. Returns kDeadlineExceeded when `give_up` has passed.
absl::Status WaitForMark(const DeviceMark& mark, Deadline give_up,
                         absl::FunctionRef<absl::Status()> may_go_on);
// Blocks until the stream of `at` has finished the work enqueued so far. `may_go_on` and `give_up`
// have the same meaning as in WaitForMark. On the host, returns at once.
absl::Status WaitForStream(const ArraysAt& at, Deadline give_up,
                           absl::FunctionRef<absl::Status()> may_go_on = absl::OkStatus);
// Does the same for the stream that the calling thread has bound (KernelStream). Returns the first
// error of the stream, or kDeadlineExceeded as WaitForMark does.
absl::Status WaitForKernels(Deadline give_up);
// Returns the first error of the work that the calling thread has enqueued on a device. Does not
// wait. On the host, returns OK.
absl::Status StatusOfKernels();

}  // namespace entrain
