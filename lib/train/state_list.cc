#include "lib/train/state_list.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/device/registry.h"

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
  const auto on_device = IsOnDevice(item);
  status_.Update(Annotate(on_device.status(), item.name));
  item.on_device = on_device.value_or(false);
  items_.push_back(std::move(item));
}

absl::StatusOr<bool> StateList::IsOnDevice(const StateItem& item) const {
  if (at_.device == nullptr || item.bytes() == 0) {
    return false;
  }
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, ProcessDevices());
  ENTRAIN_ASSIGN_OR_RETURN(const Devices::Place place, devices->PlaceOf(item.live));
  if (place.kind == MemoryKind::kDevice && place.device != at_.device) {
    return absl::InvalidArgumentError(absl::StrCat("is memory of device ", place.device->ordinal(),
                                                   ", not of device ", at_.device->ordinal(),
                                                   " or the host"));
  }
  return place.kind == MemoryKind::kDevice;
}

int64_t StateList::staged_bytes() const {
  int64_t most = 0;
  for (const StateItem& item : items_) {
    most = std::max(most, item.on_device ? item.bytes() : 0);
  }
  return most;
}

absl::StatusOr<ConstBytes> StateList::Read(const StateItem& item, std::byte* staged,
                                           Deadline give_up) const {
  const auto bytes = static_cast<size_t>(item.bytes());
  if (!item.on_device) {
    return ConstBytes(item.live, bytes);
  }
  absl::Status status = at_.device->Copy(staged, item.live, item.bytes(), at_.stream);
  if (status.ok()) {
    status = WaitForStream(at_, give_up);
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(status, item.name));
  return ConstBytes(staged, bytes);
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

absl::Status StateList::Apply(Deadline give_up) {
  ENTRAIN_RETURN_IF_ERROR(Settle(give_up));
  for (StateItem& item : items_) {
    if (item.on_device) {
      ENTRAIN_RETURN_IF_ERROR(Annotate(
          at_.device->Copy(item.live, item.loaded.data(), item.bytes(), at_.stream), item.name));
    } else if (item.bytes() > 0) {
      std::memcpy(item.live, item.loaded.data(), static_cast<size_t>(item.bytes()));
    }
  }
  return Settle(give_up);
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
