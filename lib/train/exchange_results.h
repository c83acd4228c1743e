// What EDiT's rounds have come to, for those who ask: how many there were, who was rejected, what the replicas said.
//
// Thread safety: what a round writes, by one thread at a time: the worker's while a round is under way, else the caller's. What
// others read from any thread.
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
  uint64_t wishes = 0;     // kWantCheckpoint, kWantStop of any replica at the last one
  double metric = 0;       // mean over all replicas at the last one; NaN: nobody gave any
  int64_t rejections = 0;  // layers of this replica that were rejected, over all exchanges
  int64_t rollbacks = 0;   // layers that were rolled back
};

class ExchangeResults {
 public:
  // ---- Of a round
  // The replicas have met for the rendezvous of this number, from 0.
  void Met(const std::vector<Standing>& standings, uint64_t rendezvous);
  void LayerOver(bool accepted, bool rolled_back);
  // Its last layer is over. `begun`: the step at which it began.
  void ExchangeOver(int64_t begun, uint64_t anchor_checksum);
  int64_t syncs() const { return syncs_; }

  // ---- The caller's
  // There has been no exchange yet, and the anchors are of this step.
  void Begin(int64_t step);
  void SetAnchorChecksum(uint64_t checksum);
  void VisitState(StateVisitor& visitor);
  // The state has been loaded.
  void GoOn(int64_t last_sync_step, uint64_t anchor_checksum, int64_t rendezvous);

  // ---- Any thread
  // The fields of an EditInfo that rounds change.
  void Fill(EditInfo* info) const;
  // The step at which the last exchange that is over began; -1: there was none.
  int64_t last_sync_step() const;
  // By replica, as of the last rendezvous that is over; empty before the first.
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
  int64_t met_ ABSL_GUARDED_BY(mutex_) = 0;  // rendezvous that are over
};

}  // namespace entrain
