// The state that EDiT keeps on each rank beside the live parameters: the anchor a, on which all
// replicas agreed last, and the arrays of the outer optimizer (sgd: its momentum b; adamw: two
// moments). All are f32 and cover only the layers that train. Each array takes 4 P / M bytes if
// these layers have P parameters, in M shards.
//
// On device memory, functions that touch the arrays must be called on a thread that has bound the
// device's kernels (KernelStream).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/device_room.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/slab.h"

namespace entrain {

// A hash of the bits of an array. The array is added in pieces; all pieces but the last must be a
// multiple of 8 elements long.
class ArrayHash {
 public:
  void Add(const float* values, int64_t count);
  uint64_t Total() const;

 private:
  static constexpr uint64_t kBasis = 0xcbf29ce484222325u;
  // Four independent chains, so that no multiplication waits for the one before it.
  uint64_t chains_[4] = {kBasis, kBasis + 1, kBasis + 2, kBasis + 3};
  uint64_t count_ = 0;
};

// Returns a hash of hashes, in their order; never 0.
uint64_t CombineHashes(absl::Span<const uint64_t> hashes);

class Anchors {
 public:
  // `room`, if not null, belongs to the device that holds the anchors; it must outlive this object.
  // With `offload` the anchors lie in page-locked host memory, which the device reads and writes
  // over the bus.
  Anchors(const Slab& slab, DeviceRoom* room, bool offload = false);

  // Allocates the memory that Create needs.
  absl::Status Reserve(int outer_arrays);
  // Copies theta to a, and zeroes `outer_arrays` arrays. Padding becomes zero, whatever theta has
  // there. Does not seal the anchors, because on a device sealing waits.
  absl::Status Create(const LayerArrays& live, int outer_arrays);
  void SealAll();
  void Drop();
  bool exist() const { return exist_; }
  // Returns the trained part of a layer in the anchor, or null if the anchor does not exist.
  float* anchor(int layer) { return Part(anchor_, layer); }
  const float* anchor(int layer) const { return Part(anchor_, layer); }
  // Returns the layer's part of one array of the outer optimizer.
  float* outer(int array, int layer) const {
    return Part(outer_[static_cast<size_t>(array)], layer);
  }
  int outer_arrays() const { return static_cast<int>(outer_.size()); }

  // Stores the hash of the layer's anchor. Must be called after each change of the anchor.
  void Seal(int layer);
  // Stores a hash of the layer's anchor that the caller has computed. It must cover the whole shard
  // with its padding.
  void Seal(int layer, const ArrayHash& hash);
  // Returns the hash that was stored last.
  uint64_t seal(int layer) const { return seals_[static_cast<size_t>(layer)]; }
  // Returns the hash of the layer's anchor as it is in memory. On a device, waits for the hash.
  // Returns 0 after an error on the device; the kernel stream then has this error.
  uint64_t HashOf(int layer) const;
  // Visits the state that a checkpoint holds. A caller that changes it must seal all layers
  // afterwards.
  void VisitState(StateVisitor& visitor);
  // Returns a hash of the hashes that Seal has stored for all layers; 0 if there are no anchors.
  // All ranks of a sync group must get the same value.
  uint64_t checksum() const;

 private:
  // An array over all layers that train.
  struct Array {
    OwnedBuffer host;
    std::byte* data = nullptr;
  };
  absl::StatusOr<Array> Make() const;
  float* Part(const Array& array, int layer) const;

  const Slab& slab_;
  DeviceRoom* const room_;
  const bool offload_;
  std::vector<int64_t> offsets_;  // by layer: the start of its part
  int64_t count_ = 0;             // elements of each array
  std::vector<Array> reserved_;
  Array anchor_;
  std::vector<Array> outer_;
  bool exist_ = false;
  std::vector<uint64_t> seals_;  // by layer
};

}  // namespace entrain
