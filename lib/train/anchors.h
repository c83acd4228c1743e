// What EDiT keeps on each rank beside the live parameters: the anchor a, which is where all
// replicas last agreed, and what the outer optimizer keeps (sgd: its momentum b; adamw: two
// moments). f32, for the layers that train; 4 P / M bytes each.
//
// On device memory functions that work on it are called where its kernels are bound (KernelStream).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/device_room.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/slab.h"

namespace entrain {

// A hash of the bits of an array in pieces, all but the last of a multiple of 8 elements.
class ArrayHash {
 public:
  void Add(const float* values, int64_t count);
  uint64_t Total() const;

 private:
  static constexpr uint64_t kBasis = 0xcbf29ce484222325u;
  // Four chains side by side: one multiplication waits for none of the other three.
  uint64_t chains_[4] = {kBasis, kBasis + 1, kBasis + 2, kBasis + 3};
  uint64_t count_ = 0;
};

class Anchors {
 public:
  // `room`, if not null: of the device they are on, outlives this; `offload`: in page-locked memory
  // of the host, which the device reads and writes over the bus.
  Anchors(const Slab& slab, DeviceRoom* room, bool offload = false);

  // The memory that Create will need.
  absl::Status Reserve(int outer_arrays);
  // a := theta, and `outer_arrays` arrays of zeros. Padding is zero whatever theta has there.
  // They are still to be sealed, which on a device waits.
  absl::Status Create(const LayerArrays& live, int outer_arrays);
  void SealAll();
  void Drop();
  bool exist() const { return exist_; }
  // The part of a layer that trains; null when there is no such array.
  float* anchor(int layer) { return Part(anchor_, layer); }
  const float* anchor(int layer) const { return Part(anchor_, layer); }
  // The layer's part of an array of the outer optimizer's.
  float* outer(int array, int layer) const {
    return Part(outer_[static_cast<size_t>(array)], layer);
  }
  int outer_arrays() const { return static_cast<int>(outer_.size()); }

  // Takes note of what the layer's anchor is after a change.
  void Seal(int layer);
  // The same where its hash is known: of all of its shard, padding too.
  void Seal(int layer, const ArrayHash& hash);
  // What a checkpoint holds of it. Whoever changes it so seals all layers.
  void VisitState(StateVisitor& visitor);
  // A 64-bit hash of the bits of all anchors as sealed; 0: there are none. Equal on all ranks of a
  // sync group.
  uint64_t checksum() const;

 private:
  // Of all layers that train.
  struct Array {
    OwnedBuffer host;
    std::byte* data = nullptr;
  };
  absl::StatusOr<Array> Make() const;
  float* Part(const Array& array, int layer) const;

  const Slab& slab_;
  DeviceRoom* const room_;
  const bool offload_;
  std::vector<int64_t> offsets_;  // by layer: where its part begins
  int64_t count_ = 0;             // elements of each array
  std::vector<Array> reserved_;
  Array anchor_;
  std::vector<Array> outer_;
  bool exist_ = false;
  std::vector<uint64_t> seals_;  // by layer
};

}  // namespace entrain
