// The members' side of the admission of newcomers to a gradient channel (option admit).
// channel_newcomer.h has the newcomer's side.
//
//   own thread   rank 0 queries the store for applications            all ranks connect: Grow
//   rounds       ... | counts: applied  | further rounds, meanwhile ... | counts: met, on all
//   worker                                 Run, at the beginning of the first round after a commit:
//                                          MeetNewcomers    numbers, options       admission_meeting
//                                          ShareChannel     parameters, shards     channel_transfer
//                                          AgreeToTakeIn    on the old communicator
//                                     yes  the larger communicator and partition replace the old
//                                     no   both are dropped; the members' state is unchanged
//   this round                             counts the newcomers' gradients
//
// Newcomers are admitted at the beginning of the round after a commit, not at the end of the
// commit. This decides which ranks take part in a save. If rounds are synchronous, the save is made
// between the two rounds, without the newcomers. Otherwise the install that takes the commit also
// begins the next round. Then the save after this install includes the newcomers. A newcomer takes
// part in it after its own first install.
//
// All decisions follow from AdmissionCounts. These are summed over all ranks, in the same call as
// the counts of micro-batches. So all ranks make the same decisions. If a member is lost, the
// recovery drops newcomers that are not admitted yet.
//
// The calls of rounds have tags, so they may run concurrently with Grow, which has no tag. Before
// any other call without a tag, Await must be called.
//
// Thread safety: one thread at a time. This is the worker or, while the worker is idle, the
// caller's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/communicator.h"
#include "lib/train/acco/channel_cut.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/elastic/admission_meeting.h"
#include "lib/train/elastic/applicants.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/worker/worker.h"

namespace entrain {

// The numbers about newcomers, which ranks add to the counts of a round. An object has the numbers
// of one rank, or their sums over all ranks.
struct AdmissionCounts {
  int64_t applied = 0;  // 1 on rank 0 if processes have applied; 0 on other ranks
  int64_t met = 0;      // 1: this rank has connected the newcomers
  int64_t unmet = 0;    // 1: this rank has tried to connect newcomers, and has failed
};

// What a member gives to newcomers.
struct ChannelShare {
  ChannelTotals totals;  // of the run
  int next_number = 0;   // number of the next newcomer in the channel
  ChannelCut* cut = nullptr;
  Bytes params;
};

// The communicator and the partition that include newcomers. `cut` is null if none are admitted.
struct AdmittedRanks {
  EnlargedWorld enlarged;
  std::unique_ptr<ChannelCut> cut;
};

class ChannelAdmission {
 public:
  // `options` and `world` must outlive the object. Each rank of `world` is a replica. `give_up` is
  // passed to Worker; it must end the communicators of `world`.
  ChannelAdmission(const ChannelOptions& options, ReplicaWorld& world,
                   absl::AnyInvocable<void(const absl::Status&)> give_up);
  // If a Grow is under way, ends it by ending its communicator.
  ~ChannelAdmission();

  // Returns this rank's numbers. Must be called before the counts of a round are summed. Never
  // blocks.
  AdmissionCounts Tell();
  // Stores `all`, the sums over all ranks of what Tell has returned. Must be called on all ranks
  // after each round.
  void Hear(const AdmissionCounts& all) { heard_ = all; }
  // Called on all ranks at the beginning of a round. Acts on the sums of the last Hear:
  //   applied: begins to connect newcomers
  //   all ranks have connected the newcomers, and the previous round was a commit: admits them
  // The caller then uses the result on this member, and calls WelcomeNewcomers. Returns an error
  // only if a member is lost or this rank cannot continue. `mine` must live until then.
  absl::StatusOr<AdmittedRanks> Attend(bool committed, const ChannelShare& mine);
  // Tells the newcomers that this member has admitted them.
  void WelcomeNewcomers();
  // Blocks until no Grow runs on this rank.
  void Await();
  // Refuses newcomers that are connected or are being connected. Must be called on all ranks.
  void Drop(absl::string_view why);

 private:
  struct Growth;

  void Look();
  void Begin();
  int Room() const;
  absl::StatusOr<AdmittedRanks> Run(const ChannelShare& mine,
                                    const std::shared_ptr<Communicator>& grown);
  absl::Status TakeIn(const std::shared_ptr<Communicator>& grown, const ChannelShare& mine,
                      AdmittedRanks* admitted) const;

  const ChannelOptions& options_;
  ReplicaWorld& world_;
  const NamedGroups alike_;
  Applicants applicants_;             // used on thread_ only
  AdmissionCounts heard_;             // the argument of the last Hear
  std::atomic<bool> applied_{false};  // rank 0: Look has found applications; Tell clears the flag
  int64_t looked_ns_ = 0;             // rank 0: time at which the last Look began
  std::shared_ptr<Growth> growth_;    // null: no newcomer is connected or being connected
  Worker thread_;                     // last member: its jobs use the other members
};

}  // namespace entrain
