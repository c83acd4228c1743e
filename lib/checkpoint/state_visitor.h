// The interface through which the parts of a run show their state to the code that saves or loads
// it. Each part has one function that names its arrays, in the same order for every visitor:
//
//   void VisitState(StateVisitor& visitor) {
//     visitor.Value("steps", Holder::kAll, &step_);
//     visitor.Layer("anchor", layer, anchor(layer));
//   }
//
// Saving and loading are both visitors, so they cannot diverge. A new part needs this function, and
// its owner must call the function. Names are those of manifest.h. A rank uses each name once, or
// once per layer.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/manifest.h"

namespace entrain {

// Says which ranks hold an array.
enum class Holder {
  kAll,      // equal on all ranks; saved once
  kReplica,  // equal on all ranks of a replica; portable checkpoints save replica 0's, for all
             // replicas
  kRank      // different on each rank; only in exact checkpoints
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  // Returns the kind of checkpoint, because some parts have arrays that only one kind contains.
  virtual CheckpointKind kind() const = 0;
  // Visits an array of `count` elements. The memory must stay valid until the visitor is destroyed.
  virtual void Array(absl::string_view name, Holder holder, DType dtype, void* data,
                     int64_t count) = 0;
  // Visits this rank's shard of a layer that is equal on all replicas. The shard is saved without
  // padding, so that any number of ranks can load the layer.
  virtual void Layer(absl::string_view name, int layer, void* shard, DType dtype = DType::kF32) = 0;

  void Value(absl::string_view name, Holder holder, int64_t* value) {
    Array(name, holder, DType::kI64, value, 1);
  }
  void Value(absl::string_view name, Holder holder, double* value) {
    Array(name, holder, DType::kF64, value, 1);
  }
};

}  // namespace entrain
