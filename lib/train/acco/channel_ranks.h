// The ranks of a gradient channel: their communicator, and the partition of the parameters into
// shards (ChannelCut). Both change with the ranks:
//
//   after a loss   Shrink -> PrepareCut, on all remaining ranks -> TakeCut
//   newcomers      Enlarge on members, Become on newcomers, with a partition made before
//
// Thread safety: one thread at a time. This is the worker while a round is under way, otherwise the
// caller's thread. Any thread may call comm, bytes_sent, cut_bytes, losses, End and Abort.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"
#include "lib/train/acco/channel_admission.h"
#include "lib/train/acco/channel_cut.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/acco/commit_plan.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/elastic/admission_meeting.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/state/joint_calls.h"

namespace entrain {

// The loss of a rank.
struct ChannelLoss {
  int rank = 0;       // number of the lost rank in the channel
  int64_t round = 0;  // the round in which this rank learned of the loss, counted from 1
  std::string why;
};

class ChannelRanks {
 public:
  // `options` must have been checked, and must outlive the object. Nothing else may use `comm`.
  ChannelRanks(std::shared_ptr<Communicator> comm, const ChannelOptions& options)
      : options_(options), first_comm_(std::move(comm)) {}

  // Collective over the initial ranks. Makes the first partition, and the objects that change the
  // ranks. A newcomer calls Become instead.
  absl::Status Start();

  // Returns the current communicator, which lacks lost ranks and includes newcomers.
  std::shared_ptr<Communicator> comm() const;
  // Returns the payload bytes that this rank has sent, including those sent in earlier
  // communicators.
  uint64_t bytes_sent() const;
  // Do the same as Communicator::EndWith and Communicator::Abort. From now on Shrink returns an
  // error.
  void End(const absl::Status& why);
  void Abort(absl::string_view reason);

  ChannelCut& cut() { return *cut_; }
  const ChannelCut& cut() const { return *cut_; }
  int64_t cut_bytes() const { return cut_bytes_.load(std::memory_order_relaxed); }
  // Returns how often the partition has changed.
  int64_t cuts() const { return cuts_; }

  // ---- After a loss
  // Returns false if a loss is an error (on_loss fail).
  bool recovers() const { return options_.on_loss == OnLoss::kFinish; }
  // Returns the loss that has ended one of the two communicators: that of the partition, or that of
  // all ranks. Returns OK if there is none, after End and Abort, and if a loss is an error.
  absl::Status Lost() const;
  // Returns true if `status`, the error of a call, is the effect of a loss that Shrink can remove.
  bool Answers(const absl::Status& status) const;
  // Collective over the remaining ranks. Ends both communicators, so that no rank waits in them.
  // Replaces the communicator of all ranks by one of the remaining ranks. `round` is the number of
  // the round in `losses`.
  absl::Status Shrink(int64_t round);
  // Gathers the progress of the remaining ranks.
  absl::StatusOr<std::vector<ChannelPlace>> GatherPlaces(const ChannelPlace& mine) {
    return world_->GatherPlaces(mine);
  }
  // Returns the losses in the order in which this rank learned of them.
  std::vector<ChannelLoss> losses() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Used for calls of all ranks outside rounds, which a loss may interrupt.
  JointCalls& joint_calls() { return *joint_calls_; }
  // Returns the numbers in the channel of the ranks of comm().
  std::vector<int> numbers() const { return ReplicasOf(world_->places()); }
  // Collective over `comm`, the communicator of the remaining ranks. Prepares a new partition for
  // these ranks, and receives this rank's shards. `members` has the numbers of these ranks in the
  // channel. `holders` has, for each shard of the current partition, the rank of `comm` that sends
  // the shard.
  absl::Status PrepareCut(std::shared_ptr<Communicator> comm, std::vector<int> members,
                          absl::Span<const int> holders);
  // Returns the generation of the prepared partition's communicator, or 0 if no partition is
  // prepared.
  int64_t prepared() const;
  // Replaces the partition by the prepared one, if there is one.
  void TakeCut();

  // ---- Newcomers
  // Returns null if newcomers are never admitted (option admit).
  ChannelAdmission* admission() const { return admission_.get(); }
  // Blocks until no newcomers are being connected. Must be called before calls without a tag on
  // comm().
  void AwaitNewcomers();
  // Refuses newcomers that are not admitted yet. Must be called on all ranks.
  void DropNewcomers(absl::string_view why);
  int64_t joins() const { return joins_; }  // number of newcomers in the run
  // Returns the number of the next newcomer in the channel. No number is used twice.
  int next_number() const { return next_number_; }
  // On a member: replaces the communicator and the partition by those that include the newcomers.
  void Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut);
  // On a newcomer: makes this process a rank of `enlarged`. The members have sent `totals`.
  void Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
              const ChannelTotals& totals);

 private:
  void StartMembership();
  void StopRecovery();
  void Adopt(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut, int64_t cuts,
             int64_t joins);
  void SetCut(std::unique_ptr<ChannelCut> cut);

  const ChannelOptions& options_;
  std::shared_ptr<Communicator> first_comm_;     // null if world_ is set
  std::unique_ptr<ReplicaWorld> world_;          // null: the ranks do not change
  std::unique_ptr<ChannelAdmission> admission_;  // null: newcomers are never admitted
  std::unique_ptr<ChannelCut> cut_, prepared_;
  std::atomic<int64_t> cut_bytes_{0};
  int64_t cuts_ = 0;   // how often the partition has changed
  int64_t joins_ = 0;  // number of newcomers in the run
  int next_number_ = 0;
  std::atomic<bool> stopped_{false};  // End or Abort was called: losses are not answered any more
  std::unique_ptr<JointCalls> joint_calls_ = std::make_unique<JointCalls>();
  mutable absl::Mutex mutex_;
  std::vector<ChannelLoss> losses_ ABSL_GUARDED_BY(mutex_);
};

// Stores the first error of a gradient channel. Later rounds, installs, saves and loads return this
// error.
//
// Thread safety: only the caller's thread may use the object.
class ChannelFailure {
 public:
  // `ranks` must outlive the object.
  explicit ChannelFailure(ChannelRanks& ranks) : ranks_(ranks) {}

  const absl::Status& status() const { return status_; }
  // Stores `why` if it is an error and no error is stored yet. Returns `why`.
  absl::Status Note(const absl::Status& why) {
    status_.Update(why);
    return why;
  }
  // Does the same as Note. If `why` is an error, also ends the communicator with this error on all
  // ranks. Used for errors that only this rank has noticed.
  absl::Status NoteForAll(const absl::Status& why) {
    if (!why.ok()) {
      ranks_.End(why);
    }
    return Note(why);
  }

 private:
  ChannelRanks& ranks_;
  absl::Status status_;
};

}  // namespace entrain
