// What a rank's state is made of, as its parts name it: the visitor behind saving and loading. For
// loading, the list brings memory to read into, so that nothing live changes before everything is
// there. What is in device memory passes through the host's; the bytes are the same.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/placed_array.h"
#include "lib/train/slab.h"

namespace entrain {

struct StateItem {
  std::string name;
  Holder holder = Holder::kAll;
  int layer = -1;     // -1: no layer's
  int64_t first = 0;  // of a layer: where it is in the whole
  int64_t count = 0;
  DType dtype = DType::kF32;
  std::byte* live = nullptr;
  bool on_device = false;
  OwnedBuffer loaded;  // what is to become of it

  int64_t bytes() const { return count * SizeOf(dtype); }
};

class StateList final : public StateVisitor {
 public:
  // `at`: of the object whose state it is. On a device, each array is there or in host memory, as the driver says.
  StateList(const Slab& slab, CheckpointKind kind, const ArraysAt& at = {})
      : slab_(slab), kind_(kind), at_(at) {}

  CheckpointKind kind() const override { return kind_; }
  void Array(absl::string_view name, Holder holder, DType dtype, void* data,
             int64_t count) override;
  void Layer(absl::string_view name, int layer, void* shard, DType dtype) override;

  // What is wrong with the names and places, if anything.
  const absl::Status& status() const { return status_; }
  std::vector<StateItem>& items() { return items_; }
  const std::vector<StateItem>& items() const { return items_; }

  // The stream has done what changes the state, or the time is up. To be called before Read.
  absl::Status Settle(Deadline give_up) const { return FinishStream(at_, give_up); }
  // Of the largest item that Read copies.
  int64_t staged_bytes() const;
  // An item's bytes as it lives; from a device, copied to `staged`.
  absl::StatusOr<ConstBytes> Read(const StateItem& item, std::byte* staged, Deadline give_up) const;

  // Memory for all items.
  absl::Status Allocate();
  // An integer that was loaded; 0 where there is none of the name.
  int64_t Loaded(absl::string_view name) const;
  // Copies what was loaded to where it lives, and waits for that. An error only of the device: not all is there.
  absl::Status Apply(Deadline give_up);

 private:
  void Add(StateItem item);
  absl::StatusOr<bool> IsOnDevice(const StateItem& item) const;

  const Slab& slab_;
  const CheckpointKind kind_;
  const ArraysAt at_;
  std::vector<StateItem> items_;
  std::set<std::tuple<std::string, int, int64_t>> names_;  // with their layers and first elements
  absl::Status status_;
};

}  // namespace entrain
