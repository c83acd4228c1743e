// Access of the caller to the state of a run, array by array. The caller reads the current values,
// or sets arrays and then commits all of them at once. The arrays are those of a checkpoint
// (StateList), so the caller sees the same state that a checkpoint contains.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/checkpoint/manifest.h"
#include "lib/train/state/all_ranks.h"
#include "lib/train/state/checkpoint.h"
#include "lib/train/state/state_list.h"

namespace entrain {

class OpenState;

// The object to which the state belongs.
class StateOwner {
 public:
  // Returns a number that increases with every call that changes the state.
  virtual int64_t moves() const = 0;
  // Returns kFailedPrecondition unless a checkpoint of this kind may be saved now.
  virtual absl::Status CheckSavable(CheckpointKind kind) const = 0;
  // Collective. Continues the run from the values that were set in `state`. After an error, the
  // state of the run is unchanged.
  virtual absl::Status TakeUp(OpenState& state, int64_t timeout_ns) = 0;

 protected:
  ~StateOwner() = default;
};

// An array, or this rank's piece of a layer.
struct StateEntry {
  SavedArray array;   // as in a checkpoint
  int64_t whole = 0;  // number of elements of all pieces
  Holder holder = Holder::kAll;
  bool saves = false;  // true: this rank writes it to a checkpoint
};

class OpenState {
 public:
  // `list` has the items that `owner` has visited. `owner` must outlive this object.
  static absl::StatusOr<std::unique_ptr<OpenState>> Make(StateOwner* owner, const AllRanks& all,
                                                         const ModelPart& part,
                                                         std::unique_ptr<StateList> list);

  CheckpointKind kind() const { return list_->kind(); }
  const std::vector<StateEntry>& entries() const { return entries_; }
  // Returns the index of the array `name`. If `name` is an array of a layer, `layer` is the layer's
  // number, and the index of this rank's first piece is returned. Otherwise `layer` is -1. Returns
  // kInvalidArgument if there is no such array.
  absl::StatusOr<size_t> Find(absl::string_view name, int layer) const;
  // Get copies an entry to `data`, and Set copies `data` to an entry. `count` and `dtype` must be
  // those of the entry.
  absl::Status Get(size_t index, void* data, int64_t count, DType dtype) const;
  absl::Status Set(size_t index, const void* data, int64_t count, DType dtype);
  // Collective. Makes the owner continue from the values that were set. After an error these values
  // are still set.
  absl::Status Commit(int64_t timeout_ns);

  // GiveTo and TakeBack are called only by the owner, in TakeUp. GiveTo moves the values that the
  // caller has set to `live`. There they count as loaded values. TakeBack moves them back. GiveTo
  // is collective. It returns an error if a value is not set, or if values that must be equal on
  // several ranks differ.
  absl::Status GiveTo(AllRanks& all, StateList* live);
  void TakeBack(StateList* live);

 private:
  OpenState(StateOwner* owner, std::unique_ptr<StateList> list)
      : owner_(*owner), moves_(owner->moves()), list_(std::move(list)) {}
  absl::Status CheckFits(size_t index, int64_t count, DType dtype) const;
  absl::Status CheckComplete(const StateList& live) const;
  absl::Status CheckAlike(AllRanks& all) const;

  StateOwner& owner_;
  const int64_t moves_;  // value at the time of Make
  const std::unique_ptr<StateList> list_;
  std::vector<StateEntry> entries_;  // parallel to the list's items
  std::vector<bool> set_;
  bool given_ = false, committed_ = false;
};

}  // namespace entrain
