// The results of EDiT's rounds: the number of rounds, the rejections, and the standings of the
// replicas.
//
// Thread safety: one thread at a time may call the functions of a round. This is the worker while a
// round is under way, otherwise the caller's thread. Any thread may call the functions that read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/edit/rendezvous.h"

namespace entrain {

// Stores the first error of an object. All later calls of the object return this error.
//
// Thread safety: any thread.
class FirstError {
 public:
  void Note(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
  }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  // Returns the first error, or `status` if there is none.
  absl::Status Or(const absl::Status& status) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_.ok() ? status : status_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// The loss of a replica.
struct ReplicaLoss {
  int replica = 0;         // number of the replica
  int64_t rendezvous = 0;  // finished rendezvous when this rank learned of the loss
  std::string why;
};

struct EditInfo {
  int64_t steps = 0, syncs = 0, last_sync_step = -1;
  uint64_t anchor_checksum = 0;
  uint64_t exposed_ns = 0, sync_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
  bool in_warmup = false;
  int64_t rendezvous = 0;    // number of rendezvous, with or without an exchange
  uint64_t wishes = 0;       // flags that any replica set at the last rendezvous
  double metric = 0;         // mean over replicas at the last rendezvous; NaN: none
  int64_t rejections = 0;    // rejections of a layer of this replica, over all exchanges
  int64_t rollbacks = 0;     // layers that were rolled back
  int replicas = 1;          // number of replicas that are present
  int64_t losses = 0;        // replicas that were lost
  int64_t joins = 0;         // number of admissions of newcomers
  int replica = 0;           // number of this replica
  int most_replicas = 1;     // all numbers of replicas are below this
  int64_t short_rounds = 0;  // rounds that lost a replica after their rendezvous
  int64_t repairs = 0;       // repairs of a layer's anchor, over all replicas
  int64_t missed = 0;        // rounds that were closed without this replica
};

class ExchangeResults {
 public:
  // `replicas` is the number of replicas at the beginning. The replicas are numbered from 0.
  explicit ExchangeResults(int replicas) : replicas_(replicas), most_(replicas) {}

  // ---- Called by a round
  // Records the table of rendezvous number `rendezvous`, counted from 0.
  void Met(const NormTable& table, uint64_t rendezvous);
  void Lost(ReplicaLoss loss);
  // Records an admission. Afterwards the run has `replicas` replicas, and their numbers are below
  // `most`.
  void Joined(int replicas, int most);
  // Sets the limit of the numbers of replicas: all numbers are below `most`.
  void SetMost(int most);
  // Records that a round has lost a replica after its rendezvous. `round` is the number of earlier
  // rounds.
  void RoundShort(int64_t round);
  void SetRepairs(int64_t repairs);
  // Records that a round was closed without this replica.
  void Missed();
  void LayerOver(bool accepted, bool rolled_back);
  // Records the end of an exchange, when its last layer is finished. `begun` is the step at which
  // the exchange began.
  void ExchangeOver(int64_t begun, uint64_t anchor_checksum);
  int64_t syncs() const { return syncs_; }

  // ---- Called by the caller's thread
  // Records that there was no exchange yet, and that the anchors were made at this step.
  void Begin(int64_t step);
  void SetAnchorChecksum(uint64_t checksum);
  void VisitState(StateVisitor& visitor);
  // For a newcomer: sets the number of exchanges of the run so far.
  void SetSyncs(int64_t syncs) { syncs_ = syncs; }
  // Continues from loaded state.
  void GoOn(int64_t last_sync_step, uint64_t anchor_checksum, int64_t rendezvous);

  // ---- Any thread
  // Fills in the fields of `info` that rounds change.
  void Fill(EditInfo* info) const;
  // Returns the step at which the last finished exchange began; -1 if there was none.
  int64_t last_sync_step() const;
  // Returns the number of finished rendezvous.
  int64_t rendezvous() const;
  // Returns the standings of the replicas that took part in the last finished rendezvous. Returns
  // an empty vector before the first rendezvous.
  std::vector<Standing> standings() const;
  // Returns the standing of the replica with this number at the last finished rendezvous. Returns
  // kFailedPrecondition before the first rendezvous, and if the replica was not at the last
  // rendezvous. Returns kInvalidArgument if no replica can have this number.
  absl::StatusOr<Standing> StandingOf(int replica) const;
  std::vector<ReplicaLoss> losses() const;

 private:
  struct Shown {
    int64_t syncs = 0, last_sync_step = -1;
    uint64_t anchor_checksum = 0;
    int64_t rejections = 0, rollbacks = 0;
  };

  int64_t syncs_ = 0, rejections_ = 0, rollbacks_ = 0;
  mutable absl::Mutex mutex_;
  Shown shown_ ABSL_GUARDED_BY(mutex_);  // changes when an exchange ends
  std::vector<int> met_replicas_ ABSL_GUARDED_BY(mutex_);
  std::vector<Standing> standings_ ABSL_GUARDED_BY(mutex_);  // parallel to met_replicas_
  int64_t met_ ABSL_GUARDED_BY(mutex_) = 0;                  // finished rendezvous
  int replicas_ ABSL_GUARDED_BY(mutex_);                     // number of replicas that are present
  int most_ ABSL_GUARDED_BY(mutex_);                         // numbers of replicas are below this
  int64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ReplicaLoss> losses_ ABSL_GUARDED_BY(mutex_);
  int64_t short_rounds_ ABSL_GUARDED_BY(mutex_) = 0, last_short_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t repairs_ ABSL_GUARDED_BY(mutex_) = 0, missed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace entrain
