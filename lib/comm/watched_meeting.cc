#include "lib/comm/watched_meeting.h"

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/creation.h"

namespace entrain {

absl::StatusOr<std::vector<Parts>> WatchedMeeting::Wait(const Stop& stop) {
  while (true) {
    const Stop slice{std::min(stop.deadline, Deadline::After(kLookNs)), stop.cancelled};
    auto table = base_.Wait(slice);
    // A timeout without blame means that the slice is over. A timeout with blame is the error of a
    // rank. All ranks get this error.
    const bool sliced = absl::IsDeadlineExceeded(table.status()) && !HasBlame(table.status());
    if (!sliced || stop.deadline.Passed(Clock::Real().Now())) {
      return table;
    }
    ENTRAIN_RETURN_IF_ERROR(Look());
  }
}

absl::Status WatchedMeeting::Check() {
  ENTRAIN_RETURN_IF_ERROR(base_.Check());
  return Look();
}

absl::Status WatchedMeeting::Look() {
  const absl::Status why = watch_();
  if (!why.ok()) {
    base_.Fail(why);
  }
  return why;
}

}  // namespace entrain
