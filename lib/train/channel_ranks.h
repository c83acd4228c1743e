// The ranks of a gradient channel: their communicator, the cut of their shards, and the objects
// that change both. A recovery removes lost ranks (channel_recovery.h). An admission adds newcomers
// (channel_admission.h). The cut changes with the ranks:
//
//   after a loss   PrepareCut, on all remaining ranks -> TakeCut
//   newcomers      Enlarge on members, Become on newcomers, with a cut that has been made before
//
// Thread safety: one thread at a time: the worker while a round is under way, otherwise the
// caller's thread. comm, bytes_sent, cut_bytes, End and Abort may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"
#include "lib/train/admission_meeting.h"
#include "lib/train/channel_admission.h"
#include "lib/train/channel_cut.h"
#include "lib/train/channel_recovery.h"
#include "lib/train/channel_transfer.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/replica_world.h"

namespace entrain {

class ChannelRanks {
 public:
  // `options` have been checked and must outlive the object. Nothing else may use `comm`.
  ChannelRanks(std::shared_ptr<Communicator> comm, const ChannelOptions& options)
      : options_(options), first_comm_(std::move(comm)) {}

  // Collective. Makes the first cut, and the objects that change the ranks. A newcomer calls Become
  // instead.
  absl::Status Start();

  // Returns the communicator of the remaining ranks and of newcomers.
  std::shared_ptr<Communicator> comm() const;
  // Returns the payload bytes that this rank has sent, also in earlier communicators.
  uint64_t bytes_sent() const;
  // End and Abort end the communicator as the functions of Communicator do. They also end a
  // recovery under way.
  void End(const absl::Status& why);
  void Abort(absl::string_view reason);

  ChannelCut& cut() { return *cut_; }
  const ChannelCut& cut() const { return *cut_; }
  int64_t cut_bytes() const { return cut_bytes_.load(std::memory_order_relaxed); }
  // Returns how often the shards have been cut anew.
  int64_t cuts() const { return cuts_; }

  // ---- After a loss
  // Returns null if a loss is an error.
  ChannelRecovery* recovery() const { return recovery_.get(); }
  // Returns true if the recovery can handle the failure of a call with `status`.
  bool Answers(const absl::Status& status) const;
  // Returns the number of finished saves; 0 without a recovery.
  int64_t saves() const { return recovery_ == nullptr ? 0 : recovery_->saves(); }
  // Collective over `comm`. Receives the shards of a cut for its ranks, whose numbers are
  // `members`. `holders` has, for each shard of the present cut, the rank that holds it.
  absl::Status PrepareCut(std::shared_ptr<Communicator> comm, std::vector<int> members,
                          absl::Span<const int> holders);
  // Returns the generation of the prepared cut's communicator; 0: no cut is prepared.
  int64_t prepared() const;
  // Replaces the cut by the prepared one, if there is one.
  void TakeCut();

  // ---- Newcomers
  // Returns null if no newcomer is taken in.
  ChannelAdmission* admission() const { return admission_.get(); }
  // Blocks until no newcomers are being connected. Must be called before untagged calls on comm().
  void AwaitNewcomers();
  // Turns away newcomers that are being connected. Must be called on all ranks.
  void DropNewcomers(absl::string_view why);
  int64_t joins() const { return joins_; }  // newcomers in the whole run
  // Returns the number that the next newcomer gets. No number is used twice.
  int next_number() const { return next_number_; }
  // Replaces the members' communicator and cut by the larger communicator and its cut.
  void Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut);
  // Makes this newcomer a rank of `enlarged`, whose members have sent `totals`.
  void Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
              const ChannelTotals& totals);

 private:
  void StartMembership();
  void Adopt(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut, int64_t cuts,
             int64_t joins);
  void SetCut(std::unique_ptr<ChannelCut> cut);

  const ChannelOptions& options_;
  std::shared_ptr<Communicator> first_comm_;     // null if world_ is set, which then has it
  std::unique_ptr<ReplicaWorld> world_;          // null: the ranks do not change
  std::unique_ptr<ChannelRecovery> recovery_;    // null: a loss is an error
  std::unique_ptr<ChannelAdmission> admission_;  // null: no newcomer is taken in
  std::unique_ptr<ChannelCut> cut_, prepared_;
  std::atomic<int64_t> cut_bytes_{0};
  int64_t cuts_ = 0;   // how often the shards were cut anew
  int64_t joins_ = 0;  // newcomers in the whole run
  int next_number_ = 0;
};

}  // namespace entrain
