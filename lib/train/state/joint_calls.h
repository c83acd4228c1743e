// Calls that the caller's threads of all replicas make together beside their rounds: a save, a
// reduction over the replicas. If a rank is lost (on_loss: finish), either all remaining ranks have
// the outcome of such a call or none has it, and then all repeat it without the lost ranks:
//
//   rank 0   call 1 is over: its outcome is kept, and sent by Settle
//   rank 1   call 1 has failed with the loss: takes the outcome of rank 0, and returns it
//   rank 2   lost in call 1
//
// A call ends with an agreement of all ranks. So a rank whose call is over knows that all others
// have come to this call, and the ranks differ by at most one call. Calls are counted from the last
// round. A newcomer that was admitted behind these calls has begun none of them.
//
// Thread safety: one thread makes the calls. Recover must be called by the thread that runs the
// recovery; it may be another thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/communicator.h"
#include "lib/train/state/all_ranks.h"

namespace entrain {

class JointCalls {
 public:
  // Makes the call over the ranks `all`. Its error must be the same on all ranks, unless a group has
  // ended (AllRanks::broken). `result` is what ranks get that have not come to the end of the call.
  using Attempt = absl::FunctionRef<absl::Status(AllRanks& all, std::string* result)>;
  struct Call {
    // Returns the ranks that take part now. Called again for each attempt.
    absl::FunctionRef<AllRanks()> everybody;
    Attempt attempt;
    // Returns an error if a loss has ended the groups of `everybody`.
    absl::FunctionRef<absl::Status()> lost;
    // Runs the recovery after a loss, or waits for a recovery that runs already.
    absl::FunctionRef<absl::Status()> recover;
  };
  struct Outcome {
    absl::Status status;
    std::string result;
    bool broken = false;  // groups have ended with `status`, and no recovery helps
  };

  // Makes a call after round `round`, and repeats it after losses.
  Outcome Make(int64_t round, const Call& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs `body`, the recovery, while no attempt is under way in another thread. The groups must have
  // ended, so that an attempt fails soon.
  absl::Status Recover(absl::FunctionRef<absl::Status()> body) ABSL_LOCKS_EXCLUDED(mutex_);
  // Part of a recovery, collective over the remaining ranks `all`. `round` is the number of rounds
  // of this rank. Gives the outcome of a call to ranks that lack it.
  absl::Status Settle(Communicator& all, int64_t round, int64_t timeout_ns);

 private:
  absl::Mutex mutex_;  // held during an attempt, and during a recovery
  int64_t round_ = -1;
  int64_t made_ = 0;     // number of finished calls after round number round_
  std::string outcome_;  // of the last of these calls: its status and its result
};

}  // namespace entrain
