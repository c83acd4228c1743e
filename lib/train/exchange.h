// The arithmetic and the communication of one exchange, line by line as in the paper. layer_sync
// decides when each part runs.
//
//   Judge      G_l ← ||a - theta||; norms of all replicas; w ← softmax(-G / T)              (eq. 2)
//   Begin(l)   Delta ← w_n (a - theta); its all-reduce starts                               (eq. 3)
//   Finish(l)  beta ← min(1, phi / (||mean|| + eps)); a ← outer(a, beta mean); theta ← a    (eq. 4)
//
// Only layers that train take part, and of those only the layers given to Judge. On the host,
// collectives carry tags (the layer; for Judge the number of layers), so ranks may interleave Begin
// and Finish differently. On a device the deltas carry no tags, so their order must be the same on
// all ranks.
//
// Thread safety: one thread at a time: the caller's while nothing is under way, otherwise the
// worker. While the worker works on some layers, the caller may take and merge snapshots of others.
//
// On device memory the calling thread must have bound the device's kernels (KernelStream). The
// caller's thread binds them to the caller's stream, for CreateAnchors, Snapshot and Adopt. The
// worker binds them to a stream of its own, for the other functions. The enqueued work may still
// run when a function returns.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
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
  std::vector<double> norms, weights;  // by replica; weight 0: rejected
  double clip_factor = 1;              // beta
  double staleness = 1;                // divisor of the mean, with staleness_penalty
  bool accepted = true;                // this replica was not rejected
  AnomalyDetector::Score score;        // score of its norm, with skip_anomaly
  bool rolled_back = false;            // all were rejected, or the result was not finite
  // Totals over all exchanges of the layer, including those of a loaded run: replicas that brought
  // a delta, and how many of these were accepted. The same on all ranks.
  int64_t brought_ever = 0, accepted_ever = 0;
};

// For parameters that are not f32: a shard of theta in f32, and the same shard of the rounded
// anchor.
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
  // Takes the place of the first exchange: all replicas have equal parameters, and these become the
  // anchor. Sends nothing.
  absl::Status CreateAnchors();
  // Hashes the anchors after CreateAnchors. On a device this waits for the hashes.
  void SealAnchors();

  void VisitState(StateVisitor& visitor);
  // For loading: undoes a CreateAnchors that made room for anchors, if the checkpoint does not have
  // them.
  void DropAnchors() { anchors_.Drop(); }
  // Makes the loaded state take effect. With `live` it also copies a to theta, as after an
  // exchange.
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

  // For an exchange behind further steps: copies the live parameters of these layers. With kRestart
  // the live parameters then continue from the anchor.
  absl::Status Snapshot(const std::vector<int>& layers);
  // For loading: ReserveSnapshots allocates memory for snapshots, Resume marks this layer's
  // snapshot as in use.
  absl::Status ReserveSnapshots();
  void Resume(int layer) { overlapped_[static_cast<size_t>(layer)] = 1; }
  // Returns true between Snapshot and Merge.
  bool overlapped(int layer) const { return overlapped_[static_cast<size_t>(layer)] != 0; }

  const Anchors& anchors() const { return anchors_; }
  // Returns the standings by replica, as of the last Judge.
  const std::vector<Standing>& standings() const { return standings_; }
  const LayerReport& report(int layer) const { return reports_[static_cast<size_t>(layer)]; }
  const ExchangeGroups& groups() const { return groups_; }

 private:
  // A layer between Begin and Finish.
  struct Flight {
    DeltaBuffers::Delta delta;
    RefPtr<Work> work;
  };

  absl::Status JudgeWithinReplica(const std::vector<int>& layers, Standing* mine,
                                  std::vector<double>* norms);
  absl::StatusOr<bool> ShareNorms(const std::vector<int>& layers, const Standing& mine,
                                  const std::vector<double>& norms, int64_t extra_ns);
  void Weigh(int layer, const std::vector<double>& signed_norms,
             const std::vector<double>& trained);
  void Learn(int layer, const std::vector<Candidate>& brought);
  void FillDelta(int layer, float* delta) const;
  absl::Status Combine(int layer, float* mean);
  absl::StatusOr<std::vector<double>> OuterSquares(int layer, const float* mean) const;
  OuterScales ScalesOf(int layer, const std::vector<double>& squares);
  void RollBack(int layer);

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
  const ExchangeGroups groups_;
  const ReplicaSums sums_;
  DeviceRoom* const room_;
  const std::unique_ptr<DeltaReducer> reducer_;
  const int me_;  // this replica
  Anchors anchors_;
  OuterOptimizer outer_;
  std::vector<AnomalyDetector> detectors_;  // by layer, of this replica; empty without skip_anomaly
  std::vector<int> empty_rounds_;           // by layer: exchanges in a row that rejected all
  std::vector<int64_t> brought_, accepted_;  // by layer: brought_ever and accepted_ever of reports
  std::vector<Standing> standings_;
  StalenessGaps gaps_;
  WideShard wide_, merging_;  // for the running exchange; for merging
  OwnedBuffer snapshot_;      // laid out like the slab; exists after the first Snapshot
  float* taken_ = nullptr;    // in `snapshot_` or on a device
  // One word per layer, so that each word is written by one thread only. overlapped_: a snapshot of
  // the layer is in use. finite_: its snapshot was finite.
  std::vector<int32_t> overlapped_, finite_;
  DeltaBuffers deltas_;
  std::vector<Verdict> verdicts_;     // by layer
  std::vector<LayerReport> reports_;  // by layer
  std::vector<Flight> flights_;       // by layer
};

}  // namespace entrain
