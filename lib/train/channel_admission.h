// The members' side of the admission of newcomers to a gradient channel (option admit).
// channel_newcomer has the newcomer's side.
//
//   own thread   rank 0 looks whether processes have applied          all connect them: Grow
//   rounds       ... | counts: "applied" | rounds go on meanwhile ... | counts: "connected", on all
//   worker                                 at the beginning of the first round behind a commit, Run:
//                                          MeetNewcomers    numbers, options       admission_meeting
//                                          ShareChannel     parameters, shards     channel_transfer
//                                          AgreeToTakeIn    on the old communicator
//                                     yes  the larger communicator and the new cut replace the old
//                                     no   both are dropped, and nothing has changed
//   this round                             counts the newcomers' gradients
//
// The admission belongs to the round after the commit, not to the commit. This decides which ranks
// take part in a save. With synchronous rounds, a save between the two rounds is made without the
// newcomers. With other rounds, the install that takes the commit also begins the next round. A
// save after this install is made with the newcomers, which save after their first install.
//
// All decisions follow from counts that are summed over all ranks together with the counts of
// gradients. So the decisions are the same on all ranks. A recovery from a loss drops newcomers
// that are being connected.
//
// Calls of rounds have tags, so they may run beside a Grow, which has no tag. Other untagged calls
// may not: Await must be called before them.
//
// Thread safety: one thread at a time: the worker or, while the worker is idle, the caller's
// thread.
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

// The numbers about newcomers that ranks send with the counts of a round. An object holds one
// rank's numbers, or their sums over all ranks.
struct AdmissionCounts {
  int64_t applied = 0;  // 1 on rank 0 if processes have applied; 0 on other ranks
  int64_t met = 0;      // 1: this rank has connected newcomers
  int64_t unmet = 0;    // 1: the attempt to connect newcomers is over, and there are none
};

class ChannelAdmission {
 public:
  // `options` and `world` must outlive the object. Each rank of `world` is a replica. `give_up` is
  // as in WorkerThread. It must end the communicators of `world`.
  ChannelAdmission(const ChannelOptions& options, ReplicaWorld& world,
                   absl::AnyInvocable<void(const absl::Status&)> give_up);
  // Ends a Grow under way. To do so, ends the communicator in which the Grow runs.
  ~ChannelAdmission();

  // Returns this rank's numbers for the counts of a round. Must be called before these counts.
  // Never blocks.
  AdmissionCounts Tell();
  // Takes the sums of AdmissionCounts over all ranks, which a round has computed with its counts.
  // Must be called on all ranks.
  void Hear(const AdmissionCounts& all) { heard_ = all; }
  // Called at the beginning of a round, on all ranks. If the counts of the previous round say that
  // processes have applied, begins to connect newcomers. If these counts say that all ranks have
  // connected the newcomers, and the previous round was a commit, takes the newcomers in. Returns
  // an error only if a member is lost, or this rank cannot go on.
  absl::Status Attend(GradientRound& round);
  // Blocks until no Grow is under way on this rank.
  void Await();
  // Turns away newcomers that are connected or are being connected. Must be called on all ranks.
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
  Applicants applicants_;             // used on thread_ only
  AdmissionCounts heard_;             // sums of the last round
  std::atomic<bool> applied_{false};  // rank 0: the last Look found applications; Tell clears it
  int64_t looked_ns_ = 0;             // rank 0: time at which the last Look began
  std::shared_ptr<Growth> growth_;    // null: no newcomer is being connected
  WorkerThread thread_;               // last member: its jobs use the others
};

}  // namespace entrain
