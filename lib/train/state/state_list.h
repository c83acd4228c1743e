// A StateVisitor that lists the items of a rank's state, for saving and loading. Loaded values are
// first read into memory of the list, so that the live state does not change before all values are
// read.
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/dtype.h"
#include "lib/checkpoint/manifest.h"
#include "lib/checkpoint/state_visitor.h"
#include "lib/memory/buffer.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// Arrays that belong to the caller and are part of a run's state.
class CallersArrays {
 public:
  // Does not copy the array: `data` must stay valid until this object is destroyed.
  absl::Status Add(absl::string_view name, Holder holder, DType dtype, void* data, int64_t count) {
    if (!IsArrayName(absl::StrCat("caller/", name)) || name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("name: \"", name, "\" is not 1 to 121 letters, digits and . _ - /"));
    }
    for (const Array& array : arrays_) {
      if (array.name == name) {
        return absl::InvalidArgumentError(
            absl::StrCat("name: there is an array \"", name, "\" already"));
      }
    }
    arrays_.push_back({std::string(name), holder, dtype, data, count});
    return absl::OkStatus();
  }
  void VisitState(StateVisitor& visitor) {
    for (const Array& array : arrays_) {
      visitor.Array(absl::StrCat("caller/", array.name), array.holder, array.dtype, array.data,
                    array.count);
    }
  }

 private:
  struct Array {
    std::string name;
    Holder holder;
    DType dtype;
    void* data;
    int64_t count;
  };
  std::vector<Array> arrays_;
};

struct StateItem {
  std::string name;
  Holder holder = Holder::kAll;
  int layer = -1;     // -1: belongs to no layer
  int64_t first = 0;  // position in the whole layer
  int64_t count = 0;
  DType dtype = DType::kF32;
  std::byte* live = nullptr;
  OwnedBuffer loaded;  // the value that was loaded

  int64_t bytes() const { return count * SizeOf(dtype); }
  ConstBytes value() const { return {live, static_cast<size_t>(bytes())}; }
};

class StateList final : public StateVisitor {
 public:
  StateList(const Slab& slab, CheckpointKind kind) : slab_(slab), kind_(kind) {}

  CheckpointKind kind() const override { return kind_; }
  void Array(absl::string_view name, Holder holder, DType dtype, void* data,
             int64_t count) override;
  void Layer(absl::string_view name, int layer, void* shard, DType dtype) override;

  // Must be called on a portable list, after the visit. `exact` lists the same state for an exact
  // checkpoint. A portable load of an exact checkpoint drops the items that only `exact` has: they
  // mean nothing to other ranks.
  void SetExact(const StateList& exact);
  bool drops(const std::string& name) const { return dropped_.count(name) > 0; }

  // Returns an error if names or positions are invalid.
  const absl::Status& status() const { return status_; }
  std::vector<StateItem>& items() { return items_; }
  const std::vector<StateItem>& items() const { return items_; }

  // Allocates memory for all items.
  absl::Status Allocate();
  // Returns the loaded integer of this name, or 0 if no integer of this name was loaded.
  int64_t Loaded(absl::string_view name) const;
  // Copies the loaded values to the live state.
  void Apply();

 private:
  void Add(StateItem item);

  const Slab& slab_;
  const CheckpointKind kind_;
  std::vector<StateItem> items_;
  std::set<std::tuple<std::string, int, int64_t>> names_;  // names, with layer and first element
  std::set<std::string> dropped_;                          // names
  absl::Status status_;
};

}  // namespace entrain
