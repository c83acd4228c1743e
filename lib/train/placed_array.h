// Waits of a training object for what computes on its arrays (lib/device/arrays.h), which a device does later.
//
// Thread safety: one thread at a time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/device/arrays.h"

namespace entrain {

// The host waits until the mark is reached. An error of `may_go_on` ends that early.
// kDeadlineExceeded when the time is up.
absl::Status AwaitMark(const DeviceMark& mark, Deadline give_up,
                       absl::FunctionRef<absl::Status()> may_go_on);
// The same until the stream is through with what is on it; at once where there is none.
absl::Status FinishStream(const ArraysAt& at, Deadline give_up,
                          absl::FunctionRef<absl::Status()> may_go_on = absl::OkStatus);
// The same with the stream that the calling thread has bound (KernelStream); its first error.
absl::Status FinishKernels(Deadline give_up);

}  // namespace entrain
