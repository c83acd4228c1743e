#include "lib/train/device_waits.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

absl::Status WaitForMark(const DeviceMark& mark, Deadline give_up,
                         absl::FunctionRef<absl::Status()> may_go_on) {
  const Clock& clock = Clock::Real();
  const int64_t begun = clock.Now();
  for (;;) {
    const auto reached = mark.Reached();
    if (!reached.ok() || *reached) {
      return reached.status();
    }
    ENTRAIN_RETURN_IF_ERROR(may_go_on());
    const int64_t now = clock.Now();
    if (give_up.Passed(now)) {
      return absl::DeadlineExceededError(absl::StrCat("the device has not come so far after ",
                                                      (now - begun) / kMillisecond, " ms"));
    }
    PauseAfter(now - begun);
  }
}

absl::Status WaitForStream(const ArraysAt& at, Deadline give_up,
                           absl::FunctionRef<absl::Status()> may_go_on) {
  if (at.device == nullptr) {
    return absl::OkStatus();
  }
  DeviceMark mark(*at.device);
  absl::Status status = mark.Record(at.stream);
  status.Update(status.ok() ? WaitForMark(mark, give_up, may_go_on) : status);
  return Annotate(status, absl::StrCat("the stream on device ", at.device->ordinal()));
}

absl::Status WaitForKernels(Deadline give_up) {
  const KernelStream& on = *KernelStream::Current();
  ENTRAIN_RETURN_IF_ERROR(on.status());
  return WaitForStream({&on.device(), on.stream()}, give_up);
}

absl::Status StatusOfKernels() {
  const KernelStream* const on = KernelStream::Current();
  return on == nullptr ? absl::OkStatus() : on->status();
}

}  // namespace entrain
