// The members' side of newcomers of a gradient channel (option admit). channel_newcomer has the
// newcomer's side.
//
//   own thread   rank 0 looks whether processes have applied          all connect them: Grow
//   rounds       ... | counts: "applied" | rounds go on meanwhile ... | counts: "connected", on all
//   worker                                 at the beginning of the first round behind a commit, Run:
//                                          MeetNewcomers    numbers, options       admission_meeting
//                                          ShareChannel     parameters, shards     channel_transfer
//                                          AgreeToTakeIn    on the old communicator
//                                     yes  the larger communicator and the new cut replace the old
//                                     no   they are dropped, and nothing has changed
//   this round                             counts the newcomers' gradients
//
// The admission belongs to the round behind the commit, and not to the commit. If rounds are
// synchronous, members that save between the two save without the newcomers. Otherwise the install of
// the commit has begun the round, and a save after this install is made with the newcomers, after
// their first install.
//
// All decisions follow from counts, which are summed with those of the gradients, so they are the
// same on all ranks. A recovery from a loss drops a growth under way, on all ranks.
//
// Calls of rounds have tags, and Grow has none: before other untagged calls on the communicator,
// Await must be called.
//
// Thread safety: one thread at a time: the worker's or, when it is idle, the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/comm/communicator.h"
#include "lib/train/admission_meeting.h"
#include "lib/train/applicants.h"
#include "lib/train/channel_cut.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/replica_world.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class GradientRound;

// What a rank says about newcomers with the counts of a round, or the sums over all ranks.
struct AdmissionCounts {
  int64_t applied = 0;  // of rank 0: processes have applied
  int64_t met = 0;      // 1: connecting them is over, and has succeeded
  int64_t unmet = 0;    // 1: connecting them is over, and there is nobody
};

class ChannelAdmission {
 public:
  // `world`, in which each rank is a replica, and `options` must outlive the object. `give_up`: as of
  // WorkerThread; it must end the communicators of `world`.
  ChannelAdmission(const ChannelOptions& options, ReplicaWorld& world,
                   absl::AnyInvocable<void(const absl::Status&)> give_up);
  // Ends a growth under way, and with it the communicator.
  ~ChannelAdmission();

  // Called before the counts of a round. Never blocks.
  AdmissionCounts Tell();
  // Called with the counts of a round, on all ranks.
  void Hear(const AdmissionCounts& all) { heard_ = all; }
  // Called at the beginning of a round, on all ranks. As the counts of the round before say: begins
  // to connect newcomers or, if this is over and that round was a commit, takes them in. Returns an
  // error only if a member is lost, or this rank cannot go on.
  absl::Status Attend(GradientRound& round);
  // Blocks until no growth is under way on this rank.
  void Await();
  // Gives up newcomers that have been connected or will be. Must be called on all ranks.
  void Drop(absl::string_view why);

 private:
  struct Growth;

  void Look();
  void Begin();
  int Room() const;
  absl::Status Run(GradientRound& round, const std::shared_ptr<Communicator>& grown);
  absl::Status TakeIn(const std::shared_ptr<Communicator>& grown, const GradientRound& round,
                      EnlargedWorld* enlarged, std::unique_ptr<ChannelCut>* cut) const;

  const ChannelOptions& options_;
  ReplicaWorld& world_;
  const NamedGroups alike_;
  Applicants applicants_;             // the own thread's
  AdmissionCounts heard_;             // in the last round
  std::atomic<bool> applied_{false};  // rank 0: some have, when it looked last
  int64_t looked_ns_ = 0;             // when rank 0 has begun to look
  std::shared_ptr<Growth> growth_;    // null: nobody is being connected
  WorkerThread thread_;               // last member: its jobs use the others
};

}  // namespace entrain
