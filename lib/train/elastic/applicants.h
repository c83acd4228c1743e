// The applications of newcomers to join a run, kept in a store (option admit). The members count
// the applications and connect the newcomers. A newcomer applies until the members admit it. Used
// by EDiT (admission.h, newcomer.h) and by gradient channels (channel_admission.h,
// channel_newcomer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/communicator.h"
#include "lib/store/store.h"

namespace entrain {

using OpenStoreFn = std::function<absl::StatusOr<std::shared_ptr<Store>>(const Stop& stop)>;

// Used by the members. Thread safety: one thread at a time. Its functions block, so they must be
// called in a job of a worker.
class Applicants {
 public:
  // `object` names the training object in messages. `ranks` is the number of ranks that join as
  // one. `open` and `name` are the options admit_store and admit_name.
  Applicants(std::string object, int ranks, OpenStoreFn open, std::string name)
      : object_(std::move(object)), ranks_(ranks), open_(std::move(open)), name_(std::move(name)) {}

  // Returns the number of processes that have applied. Blocks for at most kLookNs. If the store
  // does not answer, returns 0, logs this once, and opens the store anew after kSilentNs.
  int64_t Count();
  // Collective over `from`. Connects at least `least` and at most `most` newcomers, which are no
  // members before AgreeToTakeIn (admission_meeting.h). Returns null if
  // fewer than `least` newcomers could be connected. A failure of a newcomer leaves `from` usable.
  // `timeout_ns` is the time limit of the call.
  absl::StatusOr<std::shared_ptr<Communicator>> Grow(Communicator& from, int least, int most,
                                                     int64_t timeout_ns);

 private:
  static constexpr int64_t kLookNs = 500 * kMillisecond, kSilentNs = 10 * kSecond;

  const std::string object_;
  const int ranks_;
  const OpenStoreFn open_;
  const std::string name_;
  std::shared_ptr<Store> store_;
  bool silent_ = false;  // the store does not answer, and this was logged
  Deadline look_again_;  // while silent_
};

// Used by newcomers. Collective over `own`. Returns a number that identifies this newcomer: it is
// equal on all ranks of `own` and differs from the numbers of other newcomers.
absl::StatusOr<uint64_t> GroupOf(Communicator& own);

// Applies to the members. When the members have connected this process, calls `attempt` with the
// communicator of members and newcomers. Repeats both steps until an attempt succeeds or fails with
// a final error: kInvalidArgument (the options differ) or kDataLoss (the received data is wrong).
// If an attempt fails, ends its communicator. If the members have published that another number of
// ranks than `ranks` joins as one, does not apply, and returns kDataLoss. Collective over `own`.
// Blocks for at most `wait_ns` > 0. A timeout error contains the error of the last attempt.
absl::Status ApplyUntilTakenIn(
    absl::string_view object, int ranks, Communicator& own, const OpenStoreFn& open,
    const std::string& name, int64_t wait_ns,
    absl::FunctionRef<absl::Status(const std::shared_ptr<Communicator>& world)> attempt);

}  // namespace entrain
