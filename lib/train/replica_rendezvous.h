// The rendezvous of all replicas before an exchange: gathers the norms over the ranks of each
// replica, and the standings and norms over all replicas (eq. 2). Compares the replicas' anchors,
// and repairs them (option anchor_check). The decisions that follow are in rendezvous.h and
// verdicts.h.
//
// Thread safety: one thread at a time, the thread that runs the exchange.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/train/anchor_guard.h"
#include "lib/train/anchor_vote.h"
#include "lib/train/anchors.h"
#include "lib/train/edit_options.h"
#include "lib/train/exchange_members.h"
#include "lib/train/layer_state.h"
#include "lib/train/outer_optimizer.h"
#include "lib/train/rendezvous.h"
#include "lib/train/replica_sums.h"
#include "lib/train/slab.h"
#include "lib/train/snapshots.h"
#include "lib/train/staleness.h"
#include "lib/train/verdicts.h"
#include "lib/train/wide_theta.h"

namespace entrain {

class ReplicaRendezvous {
 public:
  // The parts of the exchange. They must outlive this object.
  struct Parts {
    const Slab& slab;
    const EditOptions& options;
    const ExchangeMembers& members;
    const ReplicaSums& sums;
    const Anchors& anchors;
    const Snapshots& snapshots;
    WideTheta& theta;
    Verdicts& verdicts;
    // A repair changes these.
    LayerState& state;
    OuterOptimizer& outer;
    StalenessGaps& gaps;
  };
  explicit ReplicaRendezvous(const Parts& parts)
      : parts_(parts), guard_(parts.slab, parts.anchors, parts.options.anchor_check) {}

  // Runs the rendezvous, see LayerExchange::Judge. Returns its table. Keep has not been called yet.
  absl::StatusOr<NormTable> Run(const std::vector<int>& layers, Standing mine, int64_t extra_ns);
  // Makes `table` the result of the last rendezvous. If an exchange follows, the parameters count
  // as trained from the right anchor from now on.
  void Keep(NormTable table);
  // Returns the result of the last rendezvous.
  const NormTable& table() const { return table_; }
  // Returns true if an exchange follows the last rendezvous.
  bool exchanges() const { return Exchanges(table_.standings, parts_.options.least_steps()); }

  // Sets the flags that Run adds to the next standing of this rank.
  void Announce(uint64_t flags) { announced_ = flags; }
  // Forgets that processes have applied (kApplied). After a loss, no newcomer is taken in before
  // the next rendezvous.
  void DropApplications();
  // Returns the number of repairs of a layer's anchor so far, over all replicas. It is the same on
  // all ranks of the sync group.
  int64_t repairs() const { return repairs_; }
  // For a newcomer: sets the number of repairs to that of the members.
  void SetRepairs(int64_t repairs) { repairs_ = repairs; }
  // Returns a layer that has had no exchange since its anchor was repaired on this rank; -1: none.
  int distrusted() const;
  // For loading: trusts all layers.
  void TrustAll();

 private:
  absl::StatusOr<NormTable> Meet(const std::vector<int>& layers, Standing mine, int64_t extra_ns);
  absl::Status GatherReplica(const std::vector<int>& layers, Standing* mine,
                             std::vector<double>* norms);
  absl::StatusOr<NormTable> ShareNorms(const std::vector<int>& layers, const Standing& mine,
                                       const std::vector<double>& norms, int64_t extra_ns);
  absl::Status SettleAnchors(const NormTable& table);
  absl::Status Repair(int layer, const AnchorVote& vote, absl::string_view differs);
  absl::Status LeaveTogether(const absl::Status& why) const {
    return parts_.members.LeaveTogether(parts_.slab.layers(), why);
  }

  const Parts parts_;
  AnchorGuard guard_;
  uint64_t announced_ = 0;
  NormTable table_;
  int64_t repairs_ = 0;
};

}  // namespace entrain
