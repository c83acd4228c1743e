// Finishes a gradient channel's round after a loss (option on_loss), on the remaining ranks:
//
//   1  the communicators end, so that no rank waits in them
//   2  Shrink finds the remaining ranks                                    replica_world
//   3  all ranks send their progress, and make the same plan               commit_plan
//      if only some ranks have finished a joint call, all get its outcome  joint_calls
//   4  if a rank has decided the commit, all ranks make the commit's step
//   5  the remaining ranks make a new partition                            channel_cut
//   6  a rank that has finished the round sends the parameters to the others. If there is none:
//      if the commit was decided, the parameters are gathered from the master parameters; if not,
//      the round must be repeated
//
// If another rank is lost during Run, Run begins again and uses the results that this rank already
// has.
//
// Thread safety: Run is called by the worker. The caller's thread makes joint calls while the worker
// is idle. Any thread may call the other functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/communicator.h"
#include "lib/train/acco/commit_plan.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/state/joint_calls.h"

namespace entrain {

class ChannelRanks;
class GradientRound;

// The loss of a rank.
struct ChannelLoss {
  int rank = 0;       // number of the lost rank in the channel
  int64_t round = 0;  // the round in which this rank learned of the loss, counted from 1
  std::string why;
};

class ChannelRecovery {
 public:
  // `world` must outlive the object. Each rank of `world` is a replica. `timeout_ns` is the time
  // limit of each call. If it is 0, the communicator's default applies.
  ChannelRecovery(ReplicaWorld& world, int64_t timeout_ns)
      : world_(world), timeout_ns_(timeout_ns) {}

  // Returns true if `status`, the error of a call of `ranks`, is the effect of a lost rank. Returns
  // false after Stop.
  bool Answers(const absl::Status& status, const ChannelRanks& ranks) const;
  // Collective over the remaining ranks. A rank may call Run during a round or between rounds.
  // Returns OK if the round is finished or can be repeated, or if the next round can begin. After
  // an error this rank cannot continue.
  absl::Status Run(GradientRound& round);
  // Returns the loss that has ended a communicator. Returns OK if there is none, and after Stop.
  absl::Status Lost(const ChannelRanks& ranks) const;
  JointCalls& joint_calls() { return joint_calls_; }
  // Makes Run return an error from now on. Must be called before the caller ends the communicator.
  void Stop() { stopped_.store(true); }
  // Returns the losses in the order in which this rank learned of them.
  std::vector<ChannelLoss> losses() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Needed(const ChannelRanks& ranks) const;
  absl::Status Shrink(const GradientRound& round);
  absl::Status GoOn(GradientRound& round);
  absl::StatusOr<std::vector<ChannelPlace>> GatherPlaces(const ChannelPlace& mine);
  absl::Status Decide(const CommitPlan& plan, GradientRound& round);
  absl::Status CutAnew(GradientRound& round);

  ReplicaWorld& world_;
  const int64_t timeout_ns_;
  std::atomic<bool> stopped_{false};
  JointCalls joint_calls_;
  mutable absl::Mutex mutex_;
  std::vector<ChannelLoss> losses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
