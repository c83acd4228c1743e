#include "lib/train/state/state_list.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

void StateList::Array(absl::string_view name, Holder holder, DType dtype, void* data,
                      int64_t count) {
  if (holder == Holder::kRank && kind_ == CheckpointKind::kPortable) {
    return;
  }
  Add({.name = std::string(name),
       .holder = holder,
       .count = count,
       .dtype = dtype,
       .live = static_cast<std::byte*>(data),
       .loaded = {}});
}

void StateList::Layer(absl::string_view name, int layer, void* shard, DType dtype) {
  const SlabLayer& place = slab_.layer(layer);
  // A rank whose shard is all padding has the item too, but without elements.
  std::vector<SlabPiece> pieces = place.pieces;
  if (pieces.empty()) {
    pieces.push_back({0, place.full, 0});
  }
  for (const SlabPiece& piece : pieces) {
    Add({.name = std::string(name),
         .layer = layer,
         .first = piece.first,
         .count = piece.count,
         .dtype = dtype,
         .live = static_cast<std::byte*>(shard) + piece.at * SizeOf(dtype),
         .loaded = {}});
  }
}

void StateList::Add(StateItem item) {
  if (!IsArrayName(item.name)) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat("\"", item.name, "\" is not 1 to 128 letters, digits and . _ - /")));
  } else if (!names_.insert({item.name, item.layer, item.first}).second) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat("there are two arrays of the name \"", item.name, "\"")));
  }
  items_.push_back(std::move(item));
}

absl::Status StateList::Allocate() {
  for (StateItem& item : items_) {
    ENTRAIN_ASSIGN_OR_RETURN(item.loaded, OwnedBuffer::Allocate(item.bytes()));
  }
  return absl::OkStatus();
}

int64_t StateList::Loaded(absl::string_view name) const {
  int64_t value = 0;
  for (const StateItem& item : items_) {
    if (item.name == name && item.dtype == DType::kI64 && item.count == 1) {
      std::memcpy(&value, item.loaded.data(), sizeof(value));
    }
  }
  return value;
}

void StateList::Apply() {
  for (StateItem& item : items_) {
    if (item.bytes() > 0) {
      std::memcpy(item.live, item.loaded.data(), static_cast<size_t>(item.bytes()));
    }
  }
}

void StateList::SetExact(const StateList& exact) {
  for (const StateItem& item : exact.items_) {
    dropped_.insert(item.name);
  }
  for (const StateItem& item : items_) {
    dropped_.erase(item.name);
  }
}

}  // namespace entrain
