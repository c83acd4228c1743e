// Counters and results of EDiT's rounds: the number of rounds, the rejections, and the standings of
// the replicas.
//
// Thread safety: the functions of a round are called by one thread at a time: by the worker's while
// a round is under way, otherwise by the caller's. The functions that read may be called from any
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/rendezvous.h"

namespace entrain {

struct EditInfo {
  int64_t steps = 0, syncs = 0, last_sync_step = -1;
  uint64_t anchor_checksum = 0;
  uint64_t exposed_ns = 0, sync_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
  bool in_warmup = false;
  int64_t rendezvous = 0;  // with or without an exchange
  uint64_t wishes = 0;     // set by any replica at the last rendezvous
  double metric = 0;       // mean over replicas at the last rendezvous; NaN: none
  int64_t rejections = 0;  // rejected layers of this replica, over all exchanges
  int64_t rollbacks = 0;   // layers that were rolled back
};

class ExchangeResults {
 public:
  // ---- Called by a round
  // Records the standings of rendezvous number `rendezvous`, counted from 0.
  void Met(const std::vector<Standing>& standings, uint64_t rendezvous);
  void LayerOver(bool accepted, bool rolled_back);
  // Records the end of the exchange's last layer. `begun` is the step at which the exchange began.
  void ExchangeOver(int64_t begun, uint64_t anchor_checksum);
  int64_t syncs() const { return syncs_; }

  // ---- Called by the caller's thread
  // Records that there was no exchange yet and that the anchors were made at this step.
  void Begin(int64_t step);
  void SetAnchorChecksum(uint64_t checksum);
  void VisitState(StateVisitor& visitor);
  // Continues from loaded state.
  void GoOn(int64_t last_sync_step, uint64_t anchor_checksum, int64_t rendezvous);

  // ---- Any thread
  // Fills in the fields that rounds change.
  void Fill(EditInfo* info) const;
  // Returns the step at which the last finished exchange began; -1 if there was none.
  int64_t last_sync_step() const;
  // Returns the standings by replica, as of the last finished rendezvous; empty before the first.
  std::vector<Standing> standings() const;

 private:
  struct Shown {
    int64_t syncs = 0, last_sync_step = -1;
    uint64_t anchor_checksum = 0;
    int64_t rejections = 0, rollbacks = 0;
  };

  int64_t syncs_ = 0, rejections_ = 0, rollbacks_ = 0;
  mutable absl::Mutex mutex_;
  Shown shown_ ABSL_GUARDED_BY(mutex_);  // changes when an exchange ends
  std::vector<Standing> standings_ ABSL_GUARDED_BY(mutex_);
  int64_t met_ ABSL_GUARDED_BY(mutex_) = 0;  // finished rendezvous
};

}  // namespace entrain
