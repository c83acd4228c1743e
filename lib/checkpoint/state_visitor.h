// How the parts of a run show what they are made of, to whoever saves it or loads it. Each part has
// one function that names its arrays, always in the same order, whatever is done with them:
//
//   void VisitState(StateVisitor& visitor) {
//     visitor.Value("steps", Holder::kAll, &step_);
//     visitor.Layer("anchor", layer, anchor(layer));
//   }
//
// Saving and loading are visitors, so they cannot drift apart, and a new part adds this function
// and a call of it. Names are those of manifest.h; each is used once by a rank, or once a layer.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "lib/base/dtype.h"
#include "lib/checkpoint/manifest.h"

namespace entrain {

// Whose an array is.
enum class Holder {
  kAll,      // the same on all ranks: kept once
  kReplica,  // the same on all ranks of a replica; portable checkpoints keep replica 0's, for all
  kRank      // each rank's own; only in exact checkpoints
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  // For what only one kind holds.
  virtual CheckpointKind kind() const = 0;
  // `count` elements. The memory stays where it is until the visitor is gone.
  virtual void Array(absl::string_view name, Holder holder, DType dtype, void* data,
                     int64_t count) = 0;
  // This rank's shard of a layer that is the same on all replicas. Kept without padding, so that
  // any number of ranks can take it up.
  virtual void Layer(absl::string_view name, int layer, void* shard, DType dtype = DType::kF32) = 0;

  void Value(absl::string_view name, Holder holder, int64_t* value) {
    Array(name, holder, DType::kI64, value, 1);
  }
  void Value(absl::string_view name, Holder holder, double* value) {
    Array(name, holder, DType::kF64, value, 1);
  }
};

}  // namespace entrain
