// The arithmetic and the communication of one exchange, as in the paper on EDiT (arXiv 2412.07210).
// LayerSync decides when each part runs.
//
//   Judge      G_l ← ||a - theta||; norms of all replicas; w ← softmax(-G / T)              (eq. 2)
//   Begin(l)   Delta ← w_n (a - theta); its all-reduce starts                               (eq. 3)
//   Finish(l)  beta ← min(1, phi / (||mean|| + eps)); a ← outer(a, beta mean); theta ← a    (eq. 4)
//
// If a rank is lost, Recovery (recovery.h) replaces the communicators. Then the remaining replicas
// finish the exchange under way.
//
// Only the layers that are passed to Judge take part in the exchange. All of them must be layers
// that train.
//
// Collectives have tags, so the order of Begin and Finish may differ between ranks. The tag is the
// number of the layer. In Judge, the tag is the number of layers in the model.
//
// Thread safety: one thread at a time. This is the caller's thread while nothing is under way,
// otherwise the worker. While the worker works on some layers, the caller may take and merge
// snapshots of other layers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange_members.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/layer_state.h"
#include "lib/train/edit/outer_optimizer.h"
#include "lib/train/edit/reducer.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/edit/replica_rendezvous.h"
#include "lib/train/edit/replica_sums.h"
#include "lib/train/edit/snapshots.h"
#include "lib/train/edit/verdicts.h"
#include "lib/train/edit/wide_theta.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// The outcome of a layer's exchange. All ranks that have finished the layer have the same outcome.
// Ranks send this struct as it is in memory.
struct LayerOutcome {
  int64_t rolled_back = 0;
  int64_t outer_steps = 0;  // number of outer steps of the layer so far
  OuterScales scales;
};
static_assert(sizeof(LayerOutcome) == 7 * sizeof(int64_t));

class Exchange {
 public:
  // `slab` and `live` (theta) must outlive this object.
  Exchange(const Slab& slab, const LayerArrays& live, const EditOptions& options,
           ExchangeGroups groups);
  // If an exchange is under way, ends it on all ranks.
  ~Exchange();

  // Must be called once, before all other functions. Allocates the memory that is needed if theta is
  // not f32.
  absl::Status Reserve();
  // Used in place of a first exchange. The current parameters become the anchor. They must be equal
  // on all replicas. Sends nothing.
  absl::Status CreateAnchors();
  // Must be called after CreateAnchors. Hashes the anchors.
  void SealAnchors();

  void VisitState(StateVisitor& visitor);
  // Drops the anchors that CreateAnchors has made. Used after a load that has failed, and after
  // EditState::Open.
  void DropAnchors() { anchors_.Drop(); }
  // Makes the loaded state take effect. If `live` is true, also copies the anchors to theta, as an
  // exchange does.
  void Adopt(bool live);

  // Holds the rendezvous of all replicas. Each replica sends its standing and its norms of these
  // layers. Returns true if an exchange follows; then the weights are known. In `mine`, the tokens,
  // flags and metric are those of this rank: Judge combines them over the ranks of the replica.
  // Judge also sets the checksum in `mine`. The time limit of the wait for other replicas is
  // extended by `extra_ns`.
  absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine, int64_t extra_ns);
  // Returns the memory that the layer's delta needs from Begin to Finish.
  int64_t DeltaBytes(int layer) const { return DeltaBytesOf(slab_.layer(layer).valid); }
  absl::Status Begin(int layer);
  absl::Status Finish(int layer);

  // Returns how many layers this exchange may have in flight now (ExchangeRound::InFlight). May be
  // called from any thread.
  ExchangeRound::InFlight in_flight() const;

  // Frees the memory of the deltas, if a delta may have kLeastFreed bytes. Less memory is kept for
  // the next exchange: mapping it anew takes longer than the passes over it. Must not be called while
  // a layer is between Begin and Finish.
  void FreeBuffers() {
    if (DeltaBytesOf(slab_.largest().shard) >= kLeastFreed) {
      deltas_.Clear();
    }
  }
  static constexpr int64_t kLeastFreed = 512 << 10;

  const Anchors& anchors() const { return anchors_; }
  ExchangeMembers& members() { return members_; }
  const ExchangeMembers& members() const { return members_; }
  ReplicaRendezvous& rendezvous() { return rendezvous_; }
  Snapshots& snapshots() { return snapshots_; }
  Verdicts& verdicts() { return verdicts_; }
  const Verdicts& verdicts() const { return verdicts_; }

  // ---- After a loss. The worker calls these functions
  // Drops the deltas under way, and replaces the communicators, which must have ended. `replicas`
  // has the numbers of the remaining replicas, by rank of `sync`.
  void Regroup(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
               const std::vector<int>& replicas);
  // Used on a rank on which Judge has failed. `table` is from a rank on which Judge has succeeded.
  // Returns the result that Judge had there.
  bool TakeUp(NormTable table);
  // Computes the weights of the layer again, without the lost replicas. If `counts` is true, also
  // changes the totals of the report.
  void WeighAgain(int layer, bool counts);
  // Returns the outcome of the last exchange of a layer. Valid after Finish of the layer.
  const LayerOutcome& outcome(int layer) const { return outcomes_[static_cast<size_t>(layer)]; }
  // Finishes this rank's shard of a layer. Used if ranks of other sync groups have finished their
  // shards of the layer, but no rank of this sync group has finished its shard. `outcome` comes
  // from a rank that has finished. Uses its scales.
  absl::Status FinishLike(int layer, const LayerOutcome& outcome);
  // Collective over the sync group. Rank `root`, which has finished the layer, sends the result to
  // the ranks that have not finished it. `finished` is true if this rank has finished the layer.
  absl::Status Share(int layer, int root, bool finished, const LayerOutcome& outcome);

 private:
  // A layer between Begin and Finish.
  struct Flight {
    float* values() const { return reinterpret_cast<float*>(delta.data()); }
    OwnedBuffer delta;
    RefPtr<Work> work;
  };

  static int64_t DeltaBytesOf(int64_t elements) {
    return elements * static_cast<int64_t>(sizeof(float));
  }
  void FillDelta(int layer, float* delta);
  absl::Status FinishWith(int layer, const LayerOutcome* known);
  absl::Status Combine(int layer, float* mean, const LayerOutcome* known);
  absl::StatusOr<std::vector<double>> OuterSquares(int layer, const float* mean) const;
  void NoteScales(int layer, const OuterScales& scales);
  absl::Status StepOuter(int layer, float* mean, const OuterRates& rates,
                         const OuterScales& scales);
  void RollBack(int layer);
  void DropFlights();
  CallOptions OptionsOfDelta(int layer) const;

  const Slab& slab_;
  const LayerArrays& live_;
  const EditOptions options_;
  ExchangeMembers members_;
  const ReplicaSums sums_;
  const std::unique_ptr<DeltaReducer> reducer_;
  Anchors anchors_;
  OuterOptimizer outer_;
  StalenessGaps gaps_;
  LayerState state_;
  WideTheta theta_;  // used by the thread that runs the exchange
  Snapshots snapshots_;
  Verdicts verdicts_;
  ReplicaRendezvous rendezvous_;
  BufferPool deltas_;
  std::vector<LayerOutcome> outcomes_;  // by layer
  std::vector<Flight> flights_;         // by layer
};

}  // namespace entrain
