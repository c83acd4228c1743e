// Implements the functions of train.h for checkpoints.
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/train.h"
#include "lib/api/arguments.h"
#include "lib/api/array_place.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::CheckpointKind;
using entrain::CheckpointOptions;
using entrain::DType;
using entrain::Holder;
using entrain::JointReduction;

namespace {

// Converts the options of a checkpoint. Both arguments may be null; with `functions` the caller's
// functions write or read it.
absl::StatusOr<CheckpointOptions> ToCheckpointOptions(
    const entrain_checkpoint_config_t* config, const entrain_checkpoint_functions_t* functions) {
  entrain_checkpoint_config_t known;
  entrain_checkpoint_config_init(&known);
  if (config != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_checkpoint_config_t"));
  }
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("kind", known.kind, ENTRAIN_CHECKPOINT_EXACT, "ENTRAIN_CHECKPOINT_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("full_state_dict", known.full_state_dict));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("rank0_only", known.rank0_only));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("overwrite", known.overwrite));
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(known.timeout_ns));
  constexpr const char* kDefault = "local_sgd_ckpt";
  CheckpointOptions options{.directory = known.save_dir == nullptr ? kDefault : known.save_dir,
                            .name = known.ckpt_name == nullptr ? kDefault : known.ckpt_name,
                            .kind = CheckpointKind{known.kind},
                            .full = known.full_state_dict != 0,
                            .rank0_only = known.rank0_only != 0,
                            .timeout_ns = known.timeout_ns,
                            .overwrite = known.overwrite != 0};
  if (functions == nullptr) {
    return options;
  }
  entrain_checkpoint_functions_t given;
  entrain_checkpoint_functions_init(&given);
  ENTRAIN_RETURN_IF_ERROR(
      entrain::CopyStruct(functions, &given, sizeof(given), "entrain_checkpoint_functions_t"));
  for (const auto& [name, value] :
       {std::make_pair("save_dir", known.save_dir), std::make_pair("ckpt_name", known.ckpt_name)}) {
    if (value != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": \"", value,
                       "\" has no effect with functions, which have no file; set it to NULL"));
    }
  }
  options.functions = entrain::CheckpointFunctions{.user = given.user,
                                                   .write_at = given.write_at,
                                                   .finish = given.finish,
                                                   .read_at = given.read_at,
                                                   .bytes = given.bytes};
  return options;
}

// Adds an array of the caller to a training object.
template <typename Trained>
absl::Status AddState(Trained& trained, const char* name, void* data, size_t count,
                      entrain_dtype_t dtype, int32_t holder) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(name, "name"));
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements, CheckCount(count, DType{dtype}, 1));
  ENTRAIN_RETURN_IF_ERROR(
      CheckHostBuffer("data", data, elements * SizeOf(DType{dtype}), DType{dtype}));
  if (holder != ENTRAIN_STATE_ALL && holder != ENTRAIN_STATE_RANK) {
    return absl::InvalidArgumentError(
        absl::StrCat("holder ", holder, " is neither ENTRAIN_STATE_ALL nor ENTRAIN_STATE_RANK"));
  }
  return trained.AddState(name, holder == ENTRAIN_STATE_ALL ? Holder::kAll : Holder::kRank,
                          DType{dtype}, data, elements);
}

// Checks and converts the arguments of entrain_edit_reduce.
absl::StatusOr<JointReduction> ToReduction(const void* in, void* out, size_t count,
                                           entrain_dtype_t dtype, entrain_op_t op,
                                           int64_t timeout_ns, int32_t* rank, int32_t* ranks) {
  ENTRAIN_RETURN_IF_ERROR(CheckDType(dtype));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t elements, CheckCount(count, DType{dtype}, 1));
  const int64_t bytes = elements * SizeOf(DType{dtype});
  ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("in", in, bytes, DType{dtype}));
  ENTRAIN_RETURN_IF_ERROR(CheckHostBuffer("out", out, bytes, DType{dtype}));
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(timeout_ns));
  if (!IsOp(op)) {
    return absl::InvalidArgumentError(absl::StrCat("op ", op, " is not a built-in operator"));
  }
  return JointReduction{.in = in,
                        .out = out,
                        .count = elements,
                        .dtype = DType{dtype},
                        .op = entrain::ReduceOp{op},
                        .timeout_ns = timeout_ns,
                        .rank = rank,
                        .ranks = ranks};
}

// Overloads for the two kinds of training objects. Make calls them.
absl::Status Save(entrain_edit_t* edit, const CheckpointOptions& options) {
  return edit->edit->state().Save(options);
}
absl::Status Load(entrain_edit_t* edit, const CheckpointOptions& options) {
  return edit->edit->state().Load(options);
}
absl::Status Save(entrain_acco_t* acco, const CheckpointOptions& options) {
  return acco->channel->state().Save(options);
}
absl::Status Load(entrain_acco_t* acco, const CheckpointOptions& options) {
  return acco->channel->state().Load(options);
}
absl::Status Reduce(entrain_edit_t* edit, const JointReduction& reduction) {
  return edit->edit->state().Reduce(reduction);
}
absl::Status Reduce(entrain_acco_t* acco, const JointReduction& reduction) {
  return acco->channel->state().Reduce(reduction);
}
template <typename Handle, typename Options>
using Action = absl::Status (*)(Handle*, const Options&);

// Makes a call on the object, or with `work` starts it on a thread of the library. `operation` is
// the name of the work.
template <typename Handle, typename Options>
entrain_status_t Make(const char* function, Handle* handle, const char* name,
                      absl::string_view operation, Action<Handle, Options> action,
                      const absl::StatusOr<Options>& options, entrain_work_t** work) {
  return Guard(function, DoesOf(work), [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(handle, name));
    ENTRAIN_RETURN_IF_ERROR(options.status());
    return CallOn(handle, name, operation, work,
                  [=, given = *options] { return action(handle, given); });
  });
}

}  // namespace

extern "C" {

entrain_status_t entrain_edit_add_state(entrain_edit_t* edit, const char* name, void* data,
                                        size_t count, entrain_dtype_t dtype, int32_t holder) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(edit, "edit"));
    return AddState(edit->edit->state(), name, data, count, dtype, holder);
  });
}

entrain_status_t entrain_edit_reduce(entrain_edit_t* edit, const void* in, void* out, size_t count,
                                     entrain_dtype_t dtype, entrain_op_t op, int64_t timeout_ns,
                                     int32_t* rank, int32_t* ranks, entrain_work_t** work) {
  return Make(__func__, edit, "edit", "edit_reduce", Reduce,
              ToReduction(in, out, count, dtype, op, timeout_ns, rank, ranks), work);
}

entrain_status_t entrain_edit_save(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                   const entrain_checkpoint_functions_t* functions,
                                   entrain_work_t** work) {
  return Make(__func__, edit, "edit", "edit_save", Save, ToCheckpointOptions(config, functions),
              work);
}

entrain_status_t entrain_edit_load(entrain_edit_t* edit, const entrain_checkpoint_config_t* config,
                                   const entrain_checkpoint_functions_t* functions,
                                   entrain_work_t** work) {
  return Make(__func__, edit, "edit", "edit_load", Load, ToCheckpointOptions(config, functions),
              work);
}

entrain_status_t entrain_acco_add_state(entrain_acco_t* acco, const char* name, void* data,
                                        size_t count, entrain_dtype_t dtype, int32_t holder) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckIdle(acco, "acco"));
    return AddState(acco->channel->state(), name, data, count, dtype, holder);
  });
}

entrain_status_t entrain_acco_reduce(entrain_acco_t* acco, const void* in, void* out, size_t count,
                                     entrain_dtype_t dtype, entrain_op_t op, int64_t timeout_ns,
                                     int32_t* rank, int32_t* ranks, entrain_work_t** work) {
  return Make(__func__, acco, "acco", "acco_reduce", Reduce,
              ToReduction(in, out, count, dtype, op, timeout_ns, rank, ranks), work);
}

entrain_status_t entrain_acco_save(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                   const entrain_checkpoint_functions_t* functions,
                                   entrain_work_t** work) {
  return Make(__func__, acco, "acco", "acco_save", Save, ToCheckpointOptions(config, functions),
              work);
}

entrain_status_t entrain_acco_load(entrain_acco_t* acco, const entrain_checkpoint_config_t* config,
                                   const entrain_checkpoint_functions_t* functions,
                                   entrain_work_t** work) {
  return Make(__func__, acco, "acco", "acco_load", Load, ToCheckpointOptions(config, functions),
              work);
}

}  // extern "C"
