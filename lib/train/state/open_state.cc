#include "lib/train/state/open_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"
#include "lib/checkpoint/digest.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<OpenState>> OpenState::Make(StateOwner* owner, const AllRanks& all,
                                                           const ModelPart& part,
                                                           std::unique_ptr<StateList> list) {
  ENTRAIN_RETURN_IF_ERROR(list->status());
  std::unique_ptr<OpenState> state(new OpenState(owner, std::move(list)));
  for (const StateItem& item : state->list_->items()) {
    const int64_t whole =
        item.layer < 0 ? item.count : part.layers[static_cast<size_t>(item.layer)].count;
    state->entries_.push_back({.array = ArrayOf(item, all, part, state->kind()),
                               .whole = whole,
                               .holder = item.holder,
                               .saves = Brings(item, all, part, state->kind())});
  }
  state->set_.resize(state->entries_.size());
  return state;
}

absl::StatusOr<size_t> OpenState::Find(absl::string_view name, int layer) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].array.name == name && entries_[i].array.layer == layer) {
      return i;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("name: the ", NameOf(kind()), " state has no \"", name, "\"",
                   layer >= 0 ? absl::StrCat(" of layer ", layer) : std::string(" without a layer"),
                   " on this rank"));
}

absl::Status OpenState::CheckFits(size_t index, int64_t count, DType dtype) const {
  if (index >= entries_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("index ", index, ": there are ", entries_.size(), " entries"));
  }
  const SavedArray& array = entries_[index].array;
  if (dtype != array.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: ", NameOf(dtype), " was given; ", Describe(array), " is of ", NameOf(array.dtype)));
  }
  if (count != array.count) {
    return absl::InvalidArgumentError(absl::StrCat("count: ", count, " was given; ",
                                                   Describe(array), " has ", array.count,
                                                   " elements on this rank"));
  }
  return absl::OkStatus();
}

absl::Status OpenState::Get(size_t index, void* data, int64_t count, DType dtype) const {
  ENTRAIN_RETURN_IF_ERROR(CheckFits(index, count, dtype));
  if (owner_.moves() != moves_) {
    return absl::FailedPreconditionError("the run has gone on since the state was opened");
  }
  ENTRAIN_RETURN_IF_ERROR(owner_.CheckSavable(kind()));
  const ConstBytes bytes = std::as_const(*list_).items()[index].value();
  if (!bytes.empty()) {
    std::memcpy(data, bytes.data(), bytes.size());
  }
  return absl::OkStatus();
}

absl::Status OpenState::Set(size_t index, const void* data, int64_t count, DType dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckFits(index, count, dtype));
  if (committed_) {
    return absl::FailedPreconditionError("the state has been committed; open it anew");
  }
  StateItem& item = list_->items()[index];
  if (!set_[index]) {
    ENTRAIN_ASSIGN_OR_RETURN(item.loaded, OwnedBuffer::Allocate(item.bytes()));
    set_[index] = true;
  }
  if (item.bytes() > 0) {
    std::memcpy(item.loaded.data(), data, static_cast<size_t>(item.bytes()));
  }
  return absl::OkStatus();
}

absl::Status OpenState::Commit(int64_t timeout_ns) {
  if (committed_) {
    return absl::FailedPreconditionError("the state has been committed already");
  }
  ENTRAIN_RETURN_IF_ERROR(owner_.TakeUp(*this, timeout_ns));
  committed_ = true;
  return absl::OkStatus();
}

// Pieces without elements need not be set.
absl::Status OpenState::CheckComplete(const StateList& live) const {
  const std::vector<StateItem>& now = live.items();
  bool same = now.size() == entries_.size();
  for (size_t i = 0; same && i < now.size(); ++i) {
    const SavedArray& array = entries_[i].array;
    same = now[i].name == array.name && now[i].layer == array.layer &&
           now[i].first == array.first && now[i].count == array.count &&
           now[i].dtype == array.dtype;
  }
  if (!same) {
    return absl::FailedPreconditionError(
        "there are other arrays than when the state was opened; open it anew");
  }
  std::vector<std::string> missing;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!set_[i] && entries_[i].array.count > 0) {
      missing.push_back(Describe(entries_[i].array));
    }
  }
  if (missing.empty()) {
    return absl::OkStatus();
  }
  constexpr size_t kNamed = 3;
  const size_t all = missing.size();
  missing.resize(std::min(all, kNamed));
  return absl::FailedPreconditionError(absl::StrCat(
      all, " of ", entries_.size(), " arrays have not been set: ", absl::StrJoin(missing, ", "),
      all > kNamed ? ", ..." : ""));
}

absl::Status OpenState::CheckAlike(AllRanks& all) const {
  struct Alike {
    bool in_replica, across;
    std::vector<int64_t> digests = {};
    std::vector<const SavedArray*> arrays = {};
  };
  Alike everybody{true, true}, replica{true, false}, slot{false, true};
  for (size_t i = 0; i < entries_.size(); ++i) {
    const StateEntry& entry = entries_[i];
    const StateItem& item = std::as_const(*list_).items()[i];
    if (entry.holder == Holder::kRank) {
      continue;
    }
    const bool alone = entry.holder == Holder::kReplica && kind() == CheckpointKind::kExact;
    Alike& group = item.layer >= 0 ? slot : alone ? replica : everybody;
    const Digest digest =
        DigestOf(ConstBytes(item.loaded.data(), static_cast<size_t>(item.bytes())));
    int64_t number = 0;
    std::memcpy(&number, digest.data(), sizeof(number));
    group.digests.push_back(number);
    group.arrays.push_back(&entry.array);
  }
  absl::Status mine;
  for (const Alike* group : {&everybody, &replica, &slot}) {
    const std::vector<int64_t> many = {static_cast<int64_t>(group->digests.size())};
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t other,
                             all.FirstDifference(many, group->in_replica, group->across));
    ENTRAIN_RETURN_IF_ERROR(all.Agree(
        other < 0 ? absl::OkStatus()
                  : absl::FailedPreconditionError("ranks have named different arrays as state")));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t first,
                             all.FirstDifference(group->digests, group->in_replica, group->across));
    if (first >= 0) {
      mine.Update(absl::InvalidArgumentError(absl::StrCat(
          Describe(*group->arrays[static_cast<size_t>(first)]), " was set to other values on ",
          group->in_replica ? "another rank" : "another replica", ", and must be the same")));
    }
  }
  return all.Agree(mine);
}

absl::Status OpenState::GiveTo(AllRanks& all, StateList* live) {
  ENTRAIN_RETURN_IF_ERROR(all.Agree(CheckComplete(*live)));
  ENTRAIN_RETURN_IF_ERROR(CheckAlike(all));
  given_ = true;
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::swap(live->items()[i].loaded, list_->items()[i].loaded);
  }
  return absl::OkStatus();
}

void OpenState::TakeBack(StateList* live) {
  if (given_) {
    given_ = false;
    for (size_t i = 0; i < entries_.size(); ++i) {
      std::swap(live->items()[i].loaded, list_->items()[i].loaded);
    }
  }
}

}  // namespace entrain
