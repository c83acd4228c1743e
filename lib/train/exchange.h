// The arithmetic and the communication of one exchange, line by line as in the paper. layer_sync
// decides when each part runs.
//
//   Judge      G_l ← ||a - theta||; norms of all replicas; w ← softmax(-G / T)              (eq. 2)
//   Begin(l)   Delta ← w_n (a - theta); its all-reduce starts                               (eq. 3)
//   Finish(l)  beta ← min(1, phi / (||mean|| + eps)); a ← outer(a, beta mean); theta ← a    (eq. 4)
//
// When a rank is lost, Recovery (recovery.h) replaces the communicators, and the replicas that are
// left finish the exchange under way. exchange_recovery.cc has the functions for this.
//
// Only layers that train take part, and of these only the layers given to Judge. On the host,
// collectives carry tags, so ranks may interleave Begin and Finish differently. The tag is the
// layer; in Judge it is the number of layers. On a device the deltas carry no tags, so their order
// must be the same on all ranks.
//
// Thread safety: one thread at a time: the caller's thread while nothing is under way, otherwise
// the worker. While the worker works on some layers, the caller may take and merge snapshots of
// other layers.
//
// On device memory the calling thread must have bound the device's kernels (KernelStream). The
// caller's thread binds them to the caller's stream, for CreateAnchors, Snapshot and Adopt. The
// worker binds them to a stream of its own, for the other functions. The enqueued work may still
// run when a function returns.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/anchor_guard.h"
#include "lib/train/anchor_vote.h"
#include "lib/train/anchors.h"
#include "lib/train/anomaly.h"
#include "lib/train/delta_buffers.h"
#include "lib/train/device_room.h"
#include "lib/train/edit_options.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/layer_exchange.h"
#include "lib/train/outer_optimizer.h"
#include "lib/train/penalty.h"
#include "lib/train/reducer.h"
#include "lib/train/rendezvous.h"
#include "lib/train/replica_sums.h"
#include "lib/train/slab.h"
#include "lib/train/staleness.h"

namespace entrain {

// The decisions of an exchange about a layer.
struct LayerReport {
  // Indexed by the number of the replica. Weight 0: rejected. Norm and weight 0: lost, or absent.
  std::vector<double> norms, weights;
  double clip_factor = 1;        // beta
  double staleness = 1;          // divisor of the mean, with staleness_penalty
  bool accepted = true;          // this replica was not rejected
  AnomalyDetector::Score score;  // score of this replica's norm, with skip_anomaly
  bool rolled_back = false;      // all replicas were rejected, or the result was not finite
  // Totals over all exchanges of the layer, including those of a loaded run: the number of replicas
  // that brought a delta, and how many of these were accepted. The totals are the same on all
  // ranks.
  int64_t brought_ever = 0, accepted_ever = 0;
};

// The outcome of a layer's exchange. It is equal on all ranks that have finished the layer. Ranks
// send this struct as it is in memory.
struct LayerOutcome {
  int64_t rolled_back = 0;
  int64_t outer_steps = 0;  // number of outer steps of the layer so far
  OuterScales scales;
};
static_assert(sizeof(LayerOutcome) == 7 * sizeof(int64_t));

// Bytes that this rank has sent in exchanges.
struct ExchangeBytes {
  uint64_t model = 0, sync = 0;
};

// For parameters that are not f32: one shard of theta and of the rounded anchor in f32, and of the
// rounded anchor in the type of the parameters.
struct WideShard {
  OwnedBuffer host;
  float *theta = nullptr, *anchor = nullptr;
  std::byte* rounded = nullptr;
};

class Exchange final : public LayerExchange {
 public:
  // `slab`, `live` (theta) and `room` must outlive this object. `room` belongs to the device that
  // holds theta; it is null on the host.
  Exchange(const Slab& slab, const LayerArrays& live, const EditOptions& options,
           ExchangeGroups groups, DeviceRoom* room);
  // Ends the exchange under way on all ranks.
  ~Exchange() override;

  // Must be called once, before all other functions. On a device: allocates all memory that the
  // object needs. On the host: allocates the memory that a theta other than f32 needs.
  absl::Status Reserve();
  // Used in place of a first exchange: all replicas have equal parameters, and these become the
  // anchor. Sends nothing.
  absl::Status CreateAnchors();
  // Hashes the anchors after CreateAnchors. On a device this waits for the hashes.
  void SealAnchors();

  void VisitState(StateVisitor& visitor);
  // For loading: frees the anchors that CreateAnchors has made, if the checkpoint has none.
  void DropAnchors() { anchors_.Drop(); }
  // Makes the loaded state take effect. If `live` is true, also copies the anchors to theta, as an
  // exchange does.
  void Adopt(bool live);

  // LayerExchange
  absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                             int64_t extra_ns) override;
  absl::Status Begin(int layer) override;
  absl::Status Finish(int layer) override;
  void UseSnapshot(const std::vector<int>& layers) override;
  void Merge(const std::vector<int>& layers) override;
  void DropSnapshot(const std::vector<int>& layers) override;

  // Frees the buffers of the deltas. Must not be called while a layer is between Begin and Finish.
  void FreeBuffers() { deltas_.Clear(); }

  // Copies the live parameters of these layers, for an exchange that runs while the caller makes
  // further steps. With kRestart the live parameters then continue from the anchor.
  absl::Status Snapshot(const std::vector<int>& layers);
  // For loading: ReserveSnapshots allocates memory for snapshots, Resume marks this layer's
  // snapshot as in use.
  absl::Status ReserveSnapshots();
  void Resume(int layer) { overlapped_[static_cast<size_t>(layer)] = 1; }
  // Returns true between Snapshot and Merge.
  bool overlapped(int layer) const { return overlapped_[static_cast<size_t>(layer)] != 0; }

  // For rounds that are closed without this replica (round_closer.h). BeginLate must be called
  // before each such round. Until CatchUp, the functions of a round do not change the live
  // parameters, and the standing must report no steps. After `missed` such rounds, CatchUp sets the
  // parameters as option `late` says.
  absl::Status BeginLate();
  // Returns true if the parameters keep the changes that this replica has made in training.
  bool CatchUp(int64_t missed);
  // Returns true from BeginLate to CatchUp. The caller's thread must hold
  // RoundRunner::between_late_rounds.
  bool late() const;

  const Anchors& anchors() const { return anchors_; }
  // table() is the table of the last Judge. exchanges() has the value that this Judge returned.
  const NormTable& table() const { return table_; }
  bool exchanges() const { return Exchanges(table_.standings, options_.least_steps()); }
  const LayerReport& report(int layer) const { return reports_[static_cast<size_t>(layer)]; }
  // groups and bytes_sent may be called from any thread.
  ExchangeGroups groups() const ABSL_LOCKS_EXCLUDED(groups_mutex_);
  ExchangeBytes bytes_sent() const ABSL_LOCKS_EXCLUDED(groups_mutex_);
  // Returns the number of this replica.
  int replica() const { return me_; }
  // Returns the number of repairs of a layer's anchor so far, over all replicas. It is the same on
  // all ranks of the sync group.
  int64_t repairs() const { return repairs_; }
  // For a newcomer: sets the number of repairs to that of the members.
  void SetRepairs(int64_t repairs) { repairs_ = repairs; }
  // Must be called if this replica is a newcomer. Its weight then grows as newcomer_warmup says.
  void BeginGrowing() { newcomer_rounds_.assign(newcomer_rounds_.size(), 0); }
  // Returns a layer that has had no exchange since its anchor was repaired on this rank; -1: none.
  int distrusted() const;

  // ---- After a loss. The worker calls these functions
  // Replaces the communicators, which have ended, and drops the deltas under way. `replicas` has
  // the numbers of the replicas that are left, by rank of `sync`.
  void Regroup(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
               const std::vector<int>& replicas) ABSL_LOCKS_EXCLUDED(groups_mutex_);
  // Sets the number of this replica to `me`. The numbers of all replicas must be below `most`.
  // Initially both values come from the mesh.
  void SetNumbers(int me, int most);
  int most_replicas() const { return static_cast<int>(all_replicas_); }
  // Adds flags to the next standing of this rank.
  void Announce(uint64_t flags) { announced_ = flags; }
  // Forgets that processes have applied (kApplied). After a loss, no newcomer is taken in before
  // the next rendezvous.
  void DropApplications();
  // Takes the place of a Judge that has failed on this rank. `table` comes from another rank, on
  // which Judge has succeeded. Returns what Judge has returned there.
  bool TakeUp(NormTable table);
  // Computes the weights of the layer again, without the lost replicas. With `counts`, changes the
  // totals of the report too.
  void WeighAgain(int layer, bool counts);
  // Returns the outcome of the last exchange of a layer. Valid after Finish of the layer.
  const LayerOutcome& outcome(int layer) const { return outcomes_[static_cast<size_t>(layer)]; }
  // Finishes this rank's shard of a layer if no rank of the sync group has finished this shard, but
  // ranks of other sync groups have finished theirs. Uses the scales in `outcome`, which comes from
  // these ranks.
  absl::Status FinishLike(int layer, const LayerOutcome& outcome);
  // Collective over the sync group. Rank `root`, which has finished the layer, sends the result to
  // the ranks that have not finished it. `finished` is true if this rank has finished it.
  absl::Status Share(int layer, int root, bool finished, const LayerOutcome& outcome);

 private:
  // A layer between Begin and Finish.
  struct Flight {
    DeltaBuffers::Delta delta;
    RefPtr<Work> work;
  };

  absl::StatusOr<NormTable> Meet(const std::vector<int>& layers, Standing mine, int64_t extra_ns);
  absl::Status JudgeWithinReplica(const std::vector<int>& layers, Standing* mine,
                                  std::vector<double>* norms);
  absl::StatusOr<NormTable> ShareNorms(const std::vector<int>& layers, const Standing& mine,
                                       const std::vector<double>& norms, int64_t extra_ns);
  uint64_t Growing(const std::vector<int>& layers) const;
  std::vector<Candidate> Weigh(const NormTable& table, size_t index, bool counts);
  void Report(const NormTable& table, size_t index, const std::vector<Candidate>& brought);
  absl::Status SettleAnchors(const NormTable& table);
  absl::Status Repair(int layer, const AnchorVote& vote, absl::string_view differs);
  absl::Status LeaveTogether(const absl::Status& why);

  void Learn(int layer, const Candidate& own);
  void FillDelta(int layer, float* delta) const;
  absl::Status FinishWith(int layer, const LayerOutcome* known);
  absl::Status Combine(int layer, float* mean, const LayerOutcome* known);
  absl::StatusOr<std::vector<double>> OuterSquares(int layer, const float* mean) const;
  void KeepOldAnchor(int layer);
  void NoteScales(int layer, const OuterScales& scales);
  absl::Status StepOuter(int layer, float* mean, const OuterScales& scales);
  float* MeanOf(int layer) const;
  void RollBack(int layer);
  void DropFlights();
  std::vector<float*> StateOf(int layer);
  absl::StatusOr<OwnedBuffer> BroadcastState(int layer, int root);
  void TakeState(int layer, const OwnedBuffer& received);

  bool late(int layer) const { return options_.closes_early() && overlapped(layer); }
  absl::Status ReserveOnDevice();
  float* Taken(int layer) const { return taken_ + slab_.layer(layer).offset; }
  // Returns the values that are exchanged; valid until the next call.
  const float* Source(int layer) const;
  void RoundAnchor(const WideShard& wide, int layer, float* to) const;
  // For merging: Open gives theta in f32 for changes, Close writes it back.
  float* Open(int layer) const;
  void Close(int layer, const float* theta) const;
  CallOptions Options(int64_t tag, int64_t extra_ns = 0) const;
  CallOptions OptionsOfDelta(int layer) const;

  const Slab& slab_;
  const LayerArrays& live_;
  const EditOptions options_;
  mutable absl::Mutex groups_mutex_;
  ExchangeGroups
      groups_;  // the worker changes it, with groups_mutex_; others read it with the mutex
  // Bytes sent in communicators that were replaced.
  ExchangeBytes sent_before_ ABSL_GUARDED_BY(groups_mutex_);
  const ReplicaSums sums_;
  DeviceRoom* const room_;
  const std::unique_ptr<DeltaReducer> reducer_;
  int me_;               // the number of this replica
  size_t all_replicas_;  // all numbers of replicas are below this
  uint64_t announced_ = 0;
  std::vector<int> replicas_;  // numbers of the replicas that are left, by rank of `sync`
  Anchors anchors_;
  AnchorGuard guard_;
  OuterOptimizer outer_;
  std::vector<AnomalyDetector> detectors_;  // by layer, of this replica; empty without skip_anomaly
  std::vector<int> empty_rounds_;           // by layer: exchanges in a row that rejected all
  std::vector<int64_t> brought_, accepted_;  // by layer: brought_ever and accepted_ever of reports
  NormTable table_;                          // result of the last Judge
  StalenessGaps gaps_;
  OwnedBuffer means_;         // with keeps_means: last combined deltas, laid out like the slab
  WideShard wide_, merging_;  // wide_: for the running exchange; merging_: for Merge
  OwnedBuffer snapshot_;      // laid out like the slab; exists after the first Snapshot
  float* taken_ = nullptr;    // in `snapshot_` or on a device
  // One integer per layer, so that each integer is written by one thread only. overlapped_ is 1
  // while a snapshot of the layer is in use. finite_ is 1 if this snapshot was finite.
  std::vector<int32_t> overlapped_, finite_;
  int64_t repairs_ = 0;  // see repairs
  // By layer: the number of exchanges in which this replica has counted as a newcomer. At
  // newcomer_warmup its weight is full, and the number stops.
  std::vector<int64_t> newcomer_rounds_;
  // With late `weighted`: number of rounds by which the next pseudo-gradient is late.
  int64_t carried_late_ = 0;
  DeltaBuffers deltas_;
  std::vector<Verdict> verdicts_;       // by layer; their weights are by rank of the sync group
  std::vector<Verdict> counted_;        // by layer: the verdict that the totals contain
  std::vector<LayerOutcome> outcomes_;  // by layer
  std::vector<LayerReport> reports_;    // by layer
  std::vector<Flight> flights_;         // by layer
};

}  // namespace entrain
