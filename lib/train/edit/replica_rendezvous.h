// Holds the rendezvous of all replicas before an exchange. Each replica first combines the norms of
// its ranks. Then the standings and norms of all replicas are gathered (eq. 2). The class also
// compares the replicas' anchors, and repairs them (option anchor_check). rendezvous.h and
// verdicts.h make the decisions that follow.
//
// Thread safety: one thread at a time, the thread that runs the exchange.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/train/edit/anchor_guard.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange_members.h"
#include "lib/train/edit/layer_state.h"
#include "lib/train/edit/outer_optimizer.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/edit/replica_sums.h"
#include "lib/train/edit/snapshots.h"
#include "lib/train/edit/verdicts.h"
#include "lib/train/edit/wide_theta.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class ReplicaRendezvous {
 public:
  // The parts of the exchange. All must outlive this object.
  struct Parts {
    const Slab& slab;
    const EditOptions& options;
    const ExchangeMembers& members;
    const ReplicaSums& sums;
    const Anchors& anchors;
    const Snapshots& snapshots;
    WideTheta& theta;
    Verdicts& verdicts;
    // A repair changes the following parts.
    LayerState& state;
    OuterOptimizer& outer;
    StalenessGaps& gaps;
  };
  explicit ReplicaRendezvous(const Parts& parts)
      : parts_(parts), guard_(parts.slab, parts.anchors, parts.options.anchor_check) {}

  // Holds a rendezvous and returns its table. Exchange::Judge explains the arguments. Does not
  // call Keep.
  absl::StatusOr<NormTable> Run(const std::vector<int>& layers, Standing mine, int64_t extra_ns);
  // Makes `table` the result of the last rendezvous. If an exchange follows, trusts all layers of
  // `table` again (AnchorGuard): the exchange gives them parameters from the right anchor.
  void Keep(NormTable table);
  // Returns the result of the last rendezvous.
  const NormTable& table() const { return table_; }
  // Returns true if an exchange follows the last rendezvous.
  bool exchanges() const { return Exchanges(table_.standings, parts_.options.least_steps()); }

  // Sets the flags that Run adds to the next standing of this rank.
  void Announce(uint64_t flags) { announced_ = flags; }
  // Clears kApplied in the table. Must be called after a loss, so that no newcomer is admitted
  // before the next rendezvous.
  void DropApplications();
  // Returns the number of repairs so far, over all replicas. Each repaired anchor of a layer counts
  // as one. The number is the same on all ranks of the sync group.
  int64_t repairs() const { return repairs_; }
  // For a newcomer: sets the number of repairs to that of the members.
  void SetRepairs(int64_t repairs) { repairs_ = repairs; }
  // Returns a layer whose anchor was repaired on this rank and that has not been exchanged since;
  // -1: there is none.
  int distrusted() const;
  // Must be called after loading. Trusts all layers.
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
