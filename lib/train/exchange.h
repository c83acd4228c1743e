// The arithmetic and the traffic of one exchange, line by line as in the paper; when each part runs
// is layer_sync's business.
//
//   Judge      G_l ← ||a - theta||; norms of all replicas; w ← softmax(-G / T)              (eq. 2)
//   Begin(l)   Delta ← w_n (a - theta); its all-reduce starts                               (eq. 3)
//   Finish(l)  beta ← min(1, phi / (||mean|| + eps)); a ← outer(a, beta mean); theta ← a    (eq. 4)
//
// Only layers that train take part, and of those the ones that Judge is given. On the host
// collectives carry tags (the layer; for Judge the number of layers), so ranks may interleave Begin
// and Finish differently; on a device the deltas have none, and one order on all ranks.
//
// Thread safety: one thread at a time: the caller's while nothing is under way, else the worker.
// But while the worker works on some layers, the caller may take and merge snapshots of others.
//
// On device memory whoever calls has bound the device's kernels (KernelStream): the caller's thread
// to the caller's stream, for CreateAnchors, Snapshot and Adopt; the worker to one of its own, for
// the rest. What they enqueue may not be over when they return.
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

// What an exchange decided for a layer.
struct LayerReport {
  std::vector<double> norms, weights;  // by replica; a rejected one has weight 0
  double clip_factor = 1;              // beta
  double staleness = 1;                // what the mean was divided by, with staleness_penalty
  bool accepted = true;                // this replica was not rejected
  AnomalyDetector::Score score;        // of its norm, with skip_anomaly
  bool rolled_back = false;            // nobody was accepted, or what came of it was not finite
  // Of all exchanges of the layer so far, also those of a run that was loaded: how many replicas
  // brought something, and of those, how many were accepted. The same on all ranks.
  int64_t brought_ever = 0, accepted_ever = 0;
};

// Where theta is not f32: a shard of it in f32, and of the rounded anchor.
struct WideShard {
  OwnedBuffer host;
  float *theta = nullptr, *anchor = nullptr;
  std::byte* rounded = nullptr;
};

class Exchange final : public LayerExchange {
 public:
  // `slab`, `live` (theta) and `room` outlive this. `room`: of the device that theta is on; null: on
  // the host.
  Exchange(const Slab& slab, const LayerArrays& live, const EditOptions& options,
           ExchangeGroups groups, DeviceRoom* room);
  // Ends what is under way, on all ranks.
  ~Exchange() override;

  // Once, before all else: on a device the memory that this will need; on the host what theta needs
  // that is not f32.
  absl::Status Reserve();
  // In place of the first exchange: the replicas are alike, and that is the anchor. No traffic.
  absl::Status CreateAnchors();
  // After it: hashes the anchors. On a device this waits for the hashes.
  void SealAnchors();

  void VisitState(StateVisitor& visitor);
  // For loading: CreateAnchors makes room for those that come; if they do not come, this takes it back.
  void DropAnchors() { anchors_.Drop(); }
  // What was loaded counts; `live`: theta ← a too, as after an exchange.
  void Adopt(bool live);

  // LayerExchange
  absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                             int64_t extra_ns) override;
  absl::Status Begin(int layer) override;
  absl::Status Finish(int layer) override;
  void UseSnapshot(const std::vector<int>& layers) override;
  void Merge(const std::vector<int>& layers) override;
  void DropSnapshot(const std::vector<int>& layers) override;

  // No layer is between Begin and Finish: frees what they travelled in.
  void FreeBuffers() { deltas_.Clear(); }

  // For an exchange behind further steps: takes what the live parameters of these layers are now.
  // kRestart: they go on from the anchor.
  absl::Status Snapshot(const std::vector<int>& layers);
  // Memory for snapshots, and that this layer's is in use; for what is loaded.
  absl::Status ReserveSnapshots();
  void Resume(int layer) { overlapped_[static_cast<size_t>(layer)] = 1; }
  // Between Snapshot and Merge.
  bool overlapped(int layer) const { return overlapped_[static_cast<size_t>(layer)] != 0; }

  const Anchors& anchors() const { return anchors_; }
  // By replica, as of the last Judge.
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
  // What is exchanged, until the next call.
  const float* Source(int layer) const;
  void RoundAnchor(const WideShard& wide, int layer, float* to) const;
  // For whoever merges: theta in f32, to change; and then to put back.
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
  std::vector<int> empty_rounds_;           // by layer: how often in a row all were rejected
  std::vector<int64_t> brought_, accepted_;  // by layer: the report's ..._ever
  std::vector<Standing> standings_;
  StalenessGaps gaps_;
  WideShard wide_, merging_;  // of whoever runs exchanges; of whoever merges
  OwnedBuffer snapshot_;      // as the slab; from the first Snapshot on
  float* taken_ = nullptr;    // there, or on a device
  // By layer, for whole words are written by one thread each: a snapshot of it is in use; what was taken was finite.
  std::vector<int32_t> overlapped_, finite_;
  DeltaBuffers deltas_;
  std::vector<Verdict> verdicts_;     // by layer
  std::vector<LayerReport> reports_;  // by layer
  std::vector<Flight> flights_;       // by layer
};

}  // namespace entrain
