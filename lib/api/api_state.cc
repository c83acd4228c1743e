// Implements the functions of train.h for a training object's state, array by array.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/train.h"
#include "lib/api/arguments.h"
#include "lib/api/array_place.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::CheckpointKind;
using entrain::DType;
using entrain::Holder;
using entrain::OpenState;
using entrain::StateEntry;

namespace {

// Opens the state that `of` holds. `of` is a part of the training object `owner`.
template <typename Of>
absl::Status Open(Of& of, const std::shared_ptr<const void>& owner,
                  const std::shared_ptr<StartedCalls>& calls, int32_t kind,
                  entrain_state_t** state) {
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("kind", kind, ENTRAIN_CHECKPOINT_EXACT, "ENTRAIN_CHECKPOINT_*"));
  ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(state), "state"));
  ENTRAIN_ASSIGN_OR_RETURN(auto opened, of.Open(CheckpointKind{kind}));
  *state = new entrain_state{.state = std::move(opened), .owner = owner, .calls = calls};
  return absl::OkStatus();
}

absl::Status CheckOpen(const entrain_state_t* state) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(state, "state"));
  return state->owner.expired() ? absl::FailedPreconditionError(
                                      "state: the object whose state it is has been destroyed")
                                : absl::OkStatus();
}

// Checks that the state is open, and that no started call uses its object.
absl::Status CheckUsable(const entrain_state_t* state) {
  ENTRAIN_RETURN_IF_ERROR(CheckOpen(state));
  return CheckIdle(state, "state");
}

// Checks the caller's array and returns its number of elements. OpenState compares this number and
// `dtype` with those of the entry.
absl::StatusOr<int64_t> CheckData(const void* data, size_t count, entrain_dtype_t dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements, CheckCount(count, DType{dtype}, 1));
  ENTRAIN_RETURN_IF_ERROR(
      CheckHostBuffer("data", data, elements * SizeOf(DType{dtype}), DType{dtype}));
  return elements;
}

int32_t HolderOf(const StateEntry& entry) {
  if (entry.array.layer >= 0) {
    return ENTRAIN_STATE_LAYER;
  }
  switch (entry.holder) {
    case Holder::kAll:
      return ENTRAIN_STATE_ALL;
    case Holder::kReplica:
      return ENTRAIN_STATE_REPLICA;
    case Holder::kRank:
      return ENTRAIN_STATE_RANK;
  }
  return ENTRAIN_STATE_ALL;
}

}  // namespace

extern "C" {

entrain_status_t entrain_edit_open_state(entrain_edit_t* edit, int32_t kind,
                                         entrain_state_t** state, entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(state), "state"));
    return CallOn(edit, "edit", "edit_open_state", work, [edit, kind, state] {
      return Open(edit->edit->state(), edit->edit, edit->calls, kind, state);
    });
  });
}

entrain_status_t entrain_acco_open_state(entrain_acco_t* acco, int32_t kind,
                                         entrain_state_t** state, entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(state), "state"));
    return CallOn(acco, "acco", "acco_open_state", work, [acco, kind, state] {
      return Open(acco->channel->state(), acco->channel, acco->calls, kind, state);
    });
  });
}

void entrain_state_destroy(entrain_state_t* state) {
  Destroy(__func__, state);
}

entrain_status_t entrain_state_count(const entrain_state_t* state, size_t* count) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckOpen(state));
    ENTRAIN_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = state->state->entries().size();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_state_info(const entrain_state_t* state, size_t index,
                                    entrain_state_info_t* info) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckOpen(state));
    const std::vector<StateEntry>& entries = state->state->entries();
    if (index >= entries.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("index ", index, ": there are ", entries.size(), " entries"));
    }
    const StateEntry& entry = entries[index];
    entrain_state_info_t known;
    entrain_state_info_init(&known);
    known.name = entry.array.name.c_str();
    known.whole_count = static_cast<size_t>(entry.whole);
    known.first = static_cast<size_t>(entry.array.first);
    known.count = static_cast<size_t>(entry.array.count);
    known.dtype = static_cast<entrain_dtype_t>(entry.array.dtype);
    known.holder = HolderOf(entry);
    known.layer = entry.array.layer;
    known.part = entry.array.part;
    known.rank = entry.array.rank;
    known.saves = entry.saves ? 1 : 0;
    return WriteStruct(&known, sizeof(known), info, "entrain_state_info_t");
  });
}

entrain_status_t entrain_state_find(const entrain_state_t* state, const char* name, int32_t layer,
                                    size_t* index) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckOpen(state));
    ENTRAIN_RETURN_IF_ERROR(NotNull(name, "name"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(index, "index"));
    ENTRAIN_ASSIGN_OR_RETURN(*index, state->state->Find(name, layer));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_state_get(const entrain_state_t* state, size_t index, void* data,
                                   size_t count, entrain_dtype_t dtype) {
  return Guard(__func__, Does::kWait, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckUsable(state));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements, CheckData(data, count, dtype));
    return state->state->Get(index, data, elements, DType{dtype});
  });
}

entrain_status_t entrain_state_set(entrain_state_t* state, size_t index, const void* data,
                                   size_t count, entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckUsable(state));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements, CheckData(data, count, dtype));
    return state->state->Set(index, data, elements, DType{dtype});
  });
}

entrain_status_t entrain_state_commit(entrain_state_t* state, int64_t timeout_ns,
                                      entrain_work_t** work) {
  return Guard(__func__, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckOpen(state));
    ENTRAIN_RETURN_IF_ERROR(CheckTimeout(timeout_ns));
    // `kept` keeps the state alive if another thread destroys the handle.
    return CallOn(state, "state", "state_commit", work,
                  [kept = state->state, timeout_ns] { return kept->Commit(timeout_ns); });
  });
}

}  // extern "C"
