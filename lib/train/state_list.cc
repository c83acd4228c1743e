#include "lib/train/state_list.h"

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

void StateList::Layer(absl::string_view name, int layer, float* shard) {
  const SlabLayer& place = slab_.layer(layer);
  Add({.name = std::string(name),
       .layer = layer,
       .first = place.first,
       .count = place.valid,
       .live = reinterpret_cast<std::byte*>(shard),
       .loaded = {}});
}

void StateList::Add(StateItem item) {
  if (!IsArrayName(item.name)) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat("\"", item.name, "\" is not 1 to 128 letters, digits and . _ - /")));
  } else if (!names_.insert({item.name, item.layer}).second) {
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

}  // namespace entrain
