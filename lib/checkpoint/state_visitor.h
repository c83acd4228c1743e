// The interface between the objects of a run that have state and the code that saves and loads the
// state. Each such object has one function that passes its arrays to a visitor, always in the same
// order:
//
//   void VisitState(StateVisitor& visitor) {
//     visitor.Value("steps", Holder::kAll, &step_);
//     visitor.Layer("anchor", layer, anchor(layer));
//   }
//
// The visitor either saves the arrays or loads them. Both use the same function, so they cannot
// diverge.
//
// A new object needs this function, and its owner must call the function. Names must fulfil
// IsArrayName (manifest.h). A rank must use each name once, or once per layer.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/manifest.h"

namespace entrain {

// The ranks that hold an array.
enum class Holder {
  kAll,  // equal on all ranks; saved once
  // equal on all ranks of a replica; portable checkpoints save the array of replica 0 for all
  // replicas
  kReplica,
  kRank  // different on each rank; not in portable checkpoints
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  // Returns the kind of the checkpoint. Some objects have arrays that only one kind contains.
  virtual CheckpointKind kind() const = 0;
  // Visits an array of `count` elements. `data` must stay valid until the visitor is destroyed.
  virtual void Array(absl::string_view name, Holder holder, DType dtype, void* data,
                     int64_t count) = 0;
  // Visits this rank's shard of a layer. The layer must be equal on all replicas. The shard is
  // saved without padding, so that any number of ranks can load the layer.
  virtual void Layer(absl::string_view name, int layer, void* shard, DType dtype = DType::kF32) = 0;

  void Value(absl::string_view name, Holder holder, int64_t* value) {
    Array(name, holder, DType::kI64, value, 1);
  }
  void Value(absl::string_view name, Holder holder, double* value) {
    Array(name, holder, DType::kF64, value, 1);
  }
};

}  // namespace entrain
