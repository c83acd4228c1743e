// The waits of training objects for work that they have enqueued on a device.
//
// Thread safety: one thread at a time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/device/arrays.h"

namespace entrain {

// Blocks until the mark is reached. If `may_go_on` returns an error, returns early with this error.
// Returns kDeadlineExceeded when the time is up.
absl::Status WaitForMark(const DeviceMark& mark, Deadline give_up,
                         absl::FunctionRef<absl::Status()> may_go_on);
// Blocks until the stream of `at` has finished its present work. `may_go_on` and `give_up` are as
// in WaitForMark. Returns at once on the host.
absl::Status WaitForStream(const ArraysAt& at, Deadline give_up,
                           absl::FunctionRef<absl::Status()> may_go_on = absl::OkStatus);
// Blocks until the stream that the calling thread has bound (KernelStream) has finished its present
// work. Returns the stream's first error, or kDeadlineExceeded as WaitForMark does.
absl::Status WaitForKernels(Deadline give_up);
// Returns the first error of the work that the calling thread has enqueued on a device. Does not
// wait. Returns OK on the host.
absl::Status StatusOfKernels();

}  // namespace entrain
