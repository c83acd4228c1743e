// Newcomers that want to join a run leave their applications in a store (option admit). The members
// count the applications and connect the newcomers. A newcomer applies until the members take it
// in. Used by EDiT (admission.h, newcomer.h) and by gradient channels (channel_admission.h,
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

// The members' side. Thread safety: one thread at a time. Calls block, so they are made in a job of
// a worker.
class Applicants {
 public:
  // `object` is the word by which messages name the training object. `open` and `name` are the
  // options admit_store and admit_name.
  Applicants(std::string object, OpenStoreFn open, std::string name)
      : object_(std::move(object)), open_(std::move(open)), name_(std::move(name)) {}

  // Returns the number of processes that have applied. Takes at most kLookNs. Returns 0 if the
  // store does not answer, and logs this once.
  int64_t Count();
  // Connects at least `least` and at most `most` newcomers. Collective over `from`, which stays
  // usable whatever happens to newcomers. Returns null if there were fewer than `least` newcomers.
  // `timeout_ns` is the time limit of the call.
  absl::StatusOr<std::shared_ptr<Communicator>> Grow(Communicator& from, int least, int most,
                                                     int64_t timeout_ns);

 private:
  static constexpr int64_t kLookNs = 500 * kMillisecond;

  absl::StatusOr<std::shared_ptr<Store>> Open(const Stop& stop);

  const std::string object_;
  const OpenStoreFn open_;
  const std::string name_;
  std::shared_ptr<Store> store_;
  bool silent_ = false;  // the store did not answer, and this was logged
};

// The newcomer's side. Collective over `own`. Returns a number that is equal on the ranks of `own`
// and that the ranks of other newcomers do not have.
absl::StatusOr<uint64_t> GroupOf(Communicator& own);

// Applies to the members, and calls `attempt` with the communicator of members and newcomers.
// Repeats both until an attempt succeeds or fails with a final error: kInvalidArgument (the options
// differ) or kDataLoss (the received data is wrong). Takes at most `wait_ns` > 0. An error after
// this time contains the reason of the last attempt. Ends the communicator of an attempt that
// fails.
absl::Status ApplyUntilTakenIn(
    absl::string_view object, Communicator& own, const OpenStoreFn& open, const std::string& name,
    int64_t wait_ns,
    absl::FunctionRef<absl::Status(const std::shared_ptr<Communicator>& world)> attempt);

}  // namespace entrain
