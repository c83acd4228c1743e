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
// On the host, collectives have tags, so the order of Begin and Finish may differ between ranks.
// The tag is the number of the layer. In Judge, the tag is the number of layers in the model. On a
// device, the calls for deltas have no tags, so their order must be the same on all ranks.
//
// Thread safety: one thread at a time. This is the caller's thread while nothing is under way,
// otherwise the worker. While the worker works on some layers, the caller may take and merge
// snapshots of other layers.
//
// On a device, the calling thread must have bound the device's kernels (KernelStream). The caller's
// thread binds them to the caller's stream, for CreateAnchors, Snapshots::Take and Adopt. The
// worker binds them to a stream of its own, for the other functions. When a function returns, the
// work that it has enqueued may still run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"
#include "lib/train/anchors.h"
#include "lib/train/delta_buffers.h"
#include "lib/train/device_room.h"
#include "lib/train/edit_options.h"
#include "lib/train/exchange_members.h"
#include "lib/train/exchange_round.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/layer_exchange.h"
#include "lib/train/layer_state.h"
#include "lib/train/outer_optimizer.h"
#include "lib/train/reducer.h"
#include "lib/train/rendezvous.h"
#include "lib/train/replica_rendezvous.h"
#include "lib/train/replica_sums.h"
#include "lib/train/slab.h"
#include "lib/train/snapshots.h"
#include "lib/train/staleness.h"
#include "lib/train/verdicts.h"
#include "lib/train/wide_theta.h"

namespace entrain {

// The outcome of a layer's exchange. All ranks that have finished the layer have the same outcome.
// Ranks send this struct as it is in memory.
struct LayerOutcome {
  int64_t rolled_back = 0;
  int64_t outer_steps = 0;  // number of outer steps of the layer so far
  OuterScales scales;
};
static_assert(sizeof(LayerOutcome) == 7 * sizeof(int64_t));

class Exchange final : public LayerExchange {
 public:
  // `slab`, `live` (theta) and `room` must outlive this object. `room` belongs to the device on
  // which theta is. It is null on the host.
  Exchange(const Slab& slab, const LayerArrays& live, const EditOptions& options,
           ExchangeGroups groups, DeviceRoom* room);
  // If an exchange is under way, ends it on all ranks.
  ~Exchange() override;

  // Must be called once, before all other functions. On a device, allocates all memory that the
  // object needs. On the host, allocates the memory that is needed if theta is not f32.
  absl::Status Reserve();
  // Used in place of a first exchange. The current parameters become the anchor. They must be equal
  // on all replicas. Sends nothing.
  absl::Status CreateAnchors();
  // Must be called after CreateAnchors. Hashes the anchors. On a device, blocks until the hashes
  // are computed.
  void SealAnchors();

  void VisitState(StateVisitor& visitor);
  // Drops the anchors that CreateAnchors has made. Used after a load that has failed, and after
  // EditState::Open.
  void DropAnchors() { anchors_.Drop(); }
  // Makes the loaded state take effect. If `live` is true, also copies the anchors to theta, as an
  // exchange does.
  void Adopt(bool live);

  // LayerExchange
  absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                             int64_t extra_ns) override;
  int64_t DeltaBytes(int layer) const override {
    return slab_.layer(layer).valid * static_cast<int64_t>(sizeof(float));
  }
  absl::Status Begin(int layer) override;
  absl::Status Finish(int layer) override;
  void UseSnapshot(const std::vector<int>& layers) override { snapshots_.Use(layers); }
  void Merge(const std::vector<int>& layers) override { snapshots_.Merge(layers); }
  void DropSnapshot(const std::vector<int>& layers) override { snapshots_.Drop(layers); }

  // Returns how many layers this exchange may have in flight now (ExchangeRound::InFlight). May be
  // called from any thread.
  ExchangeRound::InFlight in_flight() const;

  // Frees the memory of the deltas. Must not be called while a layer is between Begin and Finish.
  void FreeBuffers() { deltas_.Clear(); }

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
    DeltaBuffers::Delta delta;
    RefPtr<Work> work;
  };

  void FillDelta(int layer, float* delta);
  absl::Status FinishWith(int layer, const LayerOutcome* known);
  absl::Status Combine(int layer, float* mean, const LayerOutcome* known);
  absl::StatusOr<std::vector<double>> OuterSquares(int layer, const float* mean) const;
  void NoteScales(int layer, const OuterScales& scales);
  absl::Status StepOuter(int layer, float* mean, const OuterRates& rates,
                         const OuterScales& scales);
  void RollBack(int layer);
  void DropFlights();
  absl::Status ReserveOnDevice();
  CallOptions OptionsOfDelta(int layer) const;

  const Slab& slab_;
  const LayerArrays& live_;
  const EditOptions options_;
  DeviceRoom* const room_;
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
  DeltaBuffers deltas_;
  std::vector<LayerOutcome> outcomes_;  // by layer
  std::vector<Flight> flights_;         // by layer
};

}  // namespace entrain
