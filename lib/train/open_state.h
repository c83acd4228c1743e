// A run's state in the caller's hands, array by array: read as it is now, or set and then taken up all at once. Which arrays
// there are, and whose, is the StateList's and the checkpoints' to say, so that this cannot drift apart from what is saved.
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
#include "lib/train/all_ranks.h"
#include "lib/train/checkpoint.h"
#include "lib/train/state_list.h"

namespace entrain {

class OpenState;

// Whose state it is.
class StateOwner {
 public:
  // Rises with every call by which the run goes on.
  virtual int64_t moves() const = 0;
  // kFailedPrecondition unless a checkpoint of that kind may be saved now.
  virtual absl::Status CheckSavable(CheckpointKind kind) const = 0;
  // Collective: goes on from what has been set, or all is as it was.
  virtual absl::Status TakeUp(OpenState& state, int64_t timeout_ns) = 0;

 protected:
  ~StateOwner() = default;
};

// An array, or this rank's piece of a layer.
struct StateEntry {
  SavedArray array;   // as a checkpoint has it
  int64_t whole = 0;  // elements of all pieces
  Holder holder = Holder::kAll;
  bool saves = false;  // this rank brings it to a checkpoint
};

class OpenState {
 public:
  // `list`: of what `owner`, which must outlive this, has visited. `wait_ns`: how long reading may wait for a device.
  static absl::StatusOr<std::unique_ptr<OpenState>> Make(StateOwner* owner, const AllRanks& all,
                                                         const ModelPart& part,
                                                         std::unique_ptr<StateList> list,
                                                         int64_t wait_ns);

  CheckpointKind kind() const { return list_->kind(); }
  const std::vector<StateEntry>& entries() const { return entries_; }
  // Index of the array of that name, or of the first piece of that layer (-1: no layer's); kInvalidArgument: there is none.
  absl::StatusOr<size_t> Find(absl::string_view name, int layer) const;
  // Copies to and from host memory; `count` and `dtype` must be the entry's.
  absl::Status Get(size_t index, void* data, int64_t count, DType dtype) const;
  absl::Status Set(size_t index, const void* data, int64_t count, DType dtype);
  // Collective. On an error everything that was set is still set.
  absl::Status Commit(int64_t timeout_ns);

  // The owner's, in TakeUp: what has been set becomes what `live` has loaded, and back. Collective; refuses what is not
  // complete, and what differs between ranks that have it alike.
  absl::Status GiveTo(AllRanks& all, StateList* live);
  void TakeBack(StateList* live);

 private:
  OpenState(StateOwner* owner, std::unique_ptr<StateList> list, int64_t wait_ns)
      : owner_(*owner), moves_(owner->moves()), list_(std::move(list)), wait_ns_(wait_ns) {}
  absl::Status CheckFits(size_t index, int64_t count, DType dtype) const;
  absl::Status CheckComplete(const StateList& live) const;
  absl::Status CheckAlike(AllRanks& all) const;

  StateOwner& owner_;
  const int64_t moves_;  // when it was opened
  const std::unique_ptr<StateList> list_;
  const int64_t wait_ns_;
  std::vector<StateEntry> entries_;  // as the list's items
  std::vector<bool> set_;
  bool given_ = false, committed_ = false;
};

}  // namespace entrain
