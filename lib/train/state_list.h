// What a rank's state is made of, as its parts name it: the visitor behind saving and loading. For
// loading, the list brings memory to read into, so that nothing live changes before everything is
// there.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/slab.h"

namespace entrain {

struct StateItem {
  std::string name;
  Holder holder = Holder::kAll;
  int layer = -1;     // -1: no layer's
  int64_t first = 0;  // of a layer: the shard's first element
  int64_t count = 0;
  DType dtype = DType::kF32;
  std::byte* live = nullptr;
  OwnedBuffer loaded;  // what is to become of it

  int64_t bytes() const { return count * SizeOf(dtype); }
};

class StateList final : public StateVisitor {
 public:
  StateList(const Slab& slab, CheckpointKind kind) : slab_(slab), kind_(kind) {}

  CheckpointKind kind() const override { return kind_; }
  void Array(absl::string_view name, Holder holder, DType dtype, void* data,
             int64_t count) override;
  void Layer(absl::string_view name, int layer, float* shard) override;

  // What is wrong with the names, if anything.
  const absl::Status& status() const { return status_; }
  std::vector<StateItem>& items() { return items_; }
  const std::vector<StateItem>& items() const { return items_; }

  // Memory for all items.
  absl::Status Allocate();
  // An integer that was loaded; 0 where there is none of the name.
  int64_t Loaded(absl::string_view name) const;
  // Copies what was loaded to where it lives.
  void Apply();

 private:
  void Add(StateItem item);

  const Slab& slab_;
  const CheckpointKind kind_;
  std::vector<StateItem> items_;
  std::set<std::pair<std::string, int>> names_;  // with their layers
  absl::Status status_;
};

}  // namespace entrain
