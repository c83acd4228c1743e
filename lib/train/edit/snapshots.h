// Snapshots of the live parameters (theta). They are used in two cases: in exchanges that overlap
// with further steps of the caller (option overlap_steps), and in rounds that are closed without
// this replica (options quorum and round_deadline). While a snapshot of a layer is in use, an
// exchange of the layer does not change theta. Afterwards the result is merged into theta.
//
// In a round that is closed without this replica, the snapshot holds the anchor from which the
// replica trains. This anchor is rounded to the type of theta. If option late is drop, nothing is
// copied: the layer is only marked as in use.
//
// Thread safety: one thread at a time for each layer. While an exchange of the layer is under way,
// this is the worker, otherwise the caller's thread. While the worker uses the snapshots of some
// layers, the caller may take and merge those of other layers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/edit/anchors.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/wide_theta.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class Snapshots {
 public:
  // The arguments must outlive this object. `worker_theta` belongs to the thread that runs the
  // exchange.
  Snapshots(const Slab& slab, const LayerArrays& live, const EditOptions& options,
            const Anchors& anchors, WideTheta* worker_theta);

  // Allocates the memory that Merge and Drop need for a theta that is not f32.
  absl::Status ReserveMerge();
  // Allocates the memory of the snapshots, unless this has been done before.
  absl::Status Reserve();

  // Copies theta of these layers. With kRestart, then sets theta to the anchor.
  absl::Status Take(const std::vector<int>& layers);
  // Marks the snapshots of these layers as in use.
  void Use(const std::vector<int>& layers);
  // Computes theta from the new anchor and from this replica's changes since the snapshot (option
  // overlap_merge). If the snapshot of a layer was not finite (SetFinite), theta becomes the
  // anchor. With kRestart this does not happen, because theta was set to the anchor after the
  // snapshot.
  void Merge(const std::vector<int>& layers);
  // Must be called instead of Merge if nothing was exchanged.
  void Drop(const std::vector<int>& layers);

  // Returns true if a snapshot of the layer is in use.
  bool in_use(int layer) const { return in_use_[static_cast<size_t>(layer)] != 0; }
  // Returns the snapshot of a layer; null: none is in use. Must not be called while this replica is
  // late, because a late replica contributes nothing to an exchange.
  const float* of(int layer) const { return in_use(layer) ? At(layer) : nullptr; }
  // Records whether this replica's values of the layer were finite.
  void SetFinite(int layer, bool finite) { finite_[static_cast<size_t>(layer)] = finite ? 1 : 0; }
  // Must be called before the anchor of a layer changes. With kRestart, writes the old anchor over
  // the snapshot, which has been sent by then. Merge needs the old anchor to compute how far this
  // replica has moved since the snapshot.
  void KeepOldAnchor(int layer);

  // BeginLate must be called before each round of these layers that is closed without this replica
  // (round_closer.h). Until CatchUp, this replica's standing must report no steps. After `missed`
  // such rounds, CatchUp sets theta (option late).
  absl::Status BeginLate(const std::vector<int>& layers);
  // Used if the replica takes no part in a round of these layers although they have snapshots of theta.
  // Drops the snapshots, and begins as BeginLate does.
  void LeaveOut(const std::vector<int>& layers);
  // Returns true if theta keeps the changes that this replica has made in training. `missed` must be 0 if
  // a round of other layers may be under way: BackgroundRounds counts by itself.
  bool CatchUp(const std::vector<int>& layers, int64_t missed);
  // Used in place of CatchUp if the layers have snapshots of theta, which Merge will use.
  void EndLate(const std::vector<int>& layers);
  // Return true from BeginLate to CatchUp or EndLate. The caller's thread must hold
  // RoundRunner::between_late_rounds when it calls them.
  bool late() const;
  bool late(int layer) const { return late_[static_cast<size_t>(layer)] != 0; }
  // If option late is weighted, returns the number of rounds by which the next pseudo-gradient is
  // late. Otherwise returns 0.
  int64_t rounds_late() const { return rounds_late_; }
  // Must be called when the late pseudo-gradient was exchanged, or when the state of another run
  // was loaded.
  void ForgetLate() { rounds_late_ = 0; }

  void VisitState(StateVisitor& visitor);

 private:
  float* Values() const { return reinterpret_cast<float*>(taken_.data()); }
  float* At(int layer) const { return Values() + slab_.layer(layer).offset; }

  const Slab& slab_;
  const LayerArrays& live_;
  const EditOptions& options_;
  const Anchors& anchors_;
  WideTheta& worker_theta_;
  WideTheta merging_;  // for Merge, Drop and CatchUp
  OwnedBuffer taken_;  // f32, laid out like the slab; exists after the first Reserve
  // One integer per layer, because threads may write the values of different layers at the same
  // time. in_use_ is 1 while a snapshot of the layer is in use. finite_ is 1 if this snapshot was
  // finite.
  std::vector<int32_t> in_use_, finite_, late_;
  int64_t rounds_late_ = 0;
};

}  // namespace entrain
