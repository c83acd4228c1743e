// Implements entrain_struct_init of types.h: the defaults of all structs that begin with a size. Also
// the functions of train.h that describe options.
#include <cstdint>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "include/entrain/entrain.h"
#include "include/entrain/optim.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/option_rows.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global

namespace entrain::api {
namespace {

template <typename Rows>
absl::Status CheckIndex(int32_t index) {
  const size_t rows = Rows::table().size();
  return index >= 0 && static_cast<size_t>(index) < rows
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("option ", index, " is not one of ", rows));
}

template <typename Rows>
absl::Status DescribeOption(int32_t index, entrain_option_t* option) {
  ENTRAIN_RETURN_IF_ERROR(CheckIndex<Rows>(index));
  const OptionRow& row = Rows::table()[static_cast<size_t>(index)];
  const entrain_option_t known = {
      .size = sizeof(known),
      .name = row.name,
      .choices = row.range.choices,
      .help = row.help,
      .offset = Rows::kOffsets[index],
      .default_value = row.fallback,
      .least = row.range.least,
      .most = row.range.most,
      .type = static_cast<int32_t>(row.type),
      .open = (row.range.without_least ? 1 : 0) + (row.range.without_most ? 2 : 0)};
  return WriteStruct(&known, sizeof(known), option, "entrain_option_t");
}

template <typename Rows>
absl::Status OptionMatters(const typename Rows::Config* config, int32_t index, int32_t* matters) {
  typename Rows::Config known = {};
  Rows::Copy(typename Rows::Options(), &known);
  ENTRAIN_RETURN_IF_ERROR(CopyStruct(config, &known, sizeof(known), Rows::kConfig));
  ENTRAIN_RETURN_IF_ERROR(NotNull(matters, "matters"));
  ENTRAIN_RETURN_IF_ERROR(CheckIndex<Rows>(index));
  ENTRAIN_ASSIGN_OR_RETURN(const auto options, NumbersOf<Rows>(known));
  *matters = Rows::table()[static_cast<size_t>(index)].matters(options) ? 1 : 0;
  return absl::OkStatus();
}

// The defaults that are not zero.
void Set(entrain_error_t* error) {
  error->guilty_rank = error->guilty_world_rank = -1;
  error->tag = -1;
}
void Set(entrain_comm_config_t* config) {
  config->world_size = 1;
}
void Set(entrain_member_t* member) {
  member->parent_rank = -1;
}
void Set(entrain_call_options_t* options) {
  options->tag = -1;
}
void Set(entrain_gta_config_t* config) {
  config->normalize = 1;
  config->density = 1;
}
void Set(entrain_work_info_t* info) {
  info->tag = -1;
  info->source = -1;
}
void Set(entrain_optim_config_t* config) {
  config->kind = ENTRAIN_OPTIM_SGD;
  config->beta1 = 0.9;
  config->beta2 = 0.999;
  config->eps = 1e-8;
  config->delta = 1e-5;
  config->rho = 0.05;
  config->gamma = 0.9;
  config->sam_eps = 1e-12;
  config->decouple = 1;
}
void Set(entrain_mesh_config_t* config) {
  config->tensor = config->pipeline = config->context = config->shard = 1;
}
void Set(entrain_shard_config_t* config) {
  config->prefetch = 1;
  config->param_dtype = config->grad_dtype = ENTRAIN_F32;
}
void Set(entrain_edit_config_t* config) {
  EditRows::Copy(EditOptions(), config);
}
void Set(entrain_edit_info_t* info) {
  info->last_sync_step = -1;
}
void Set(entrain_checkpoint_config_t* config) {
  config->full_state_dict = 1;
  config->rank0_only = 1;
}
void Set(entrain_acco_config_t* config) {
  AccoRows::Copy(ChannelOptions(), config);
  config->params_dtype = ENTRAIN_F32;
  config->grads_dtype = config->wire_dtype = -1;
}
template <typename Struct>
void Set(Struct*) {}

template <typename Struct>
void Init(void* at, size_t bytes) {
  Struct defaults = {};
  Set(&defaults);
  WriteDefaults(&defaults, sizeof(defaults), at, bytes);
}

using InitFunction = void (*)(void* at, size_t bytes);
// In the order of ENTRAIN_STRUCT_*.
constexpr InitFunction kInits[] = {
    Init<entrain_error_t>,
    Init<entrain_runtime_config_t>,
    Init<entrain_comm_config_t>,
    Init<entrain_grow_config_t>,
    Init<entrain_join_config_t>,
    Init<entrain_comm_stats_t>,
    Init<entrain_member_t>,
    Init<entrain_shrink_config_t>,
    Init<entrain_store_functions_t>,
    Init<entrain_call_options_t>,
    Init<entrain_gta_config_t>,
    Init<entrain_work_info_t>,
    Init<entrain_optim_config_t>,
    Init<entrain_optim_info_t>,
    Init<entrain_mesh_config_t>,
    Init<entrain_shard_config_t>,
    Init<entrain_shard_layer_t>,
    Init<entrain_shard_stats_t>,
    Init<entrain_option_t>,
    Init<entrain_edit_config_t>,
    Init<entrain_edit_replica_t>,
    Init<entrain_edit_info_t>,
    Init<entrain_checkpoint_config_t>,
    Init<entrain_checkpoint_functions_t>,
    Init<entrain_state_info_t>,
    Init<entrain_acco_config_t>,
    Init<entrain_acco_info_t>,
};
static_assert(std::size(kInits) == ENTRAIN_STRUCT_ACCO_INFO + 1);

}  // namespace
}  // namespace entrain::api

extern "C" {

void entrain_struct_init(int32_t which, void* at, size_t bytes) {
  if (which >= 0 && static_cast<size_t>(which) < std::size(kInits)) {
    kInits[which](at, bytes);
  } else if (at != nullptr) {
    std::memset(at, 0, bytes);
  }
}

int32_t entrain_option_count(int32_t method) {
  switch (method) {
    case ENTRAIN_METHOD_EDIT:
      return static_cast<int32_t>(EditRows::table().size());
    case ENTRAIN_METHOD_ACCO:
      return static_cast<int32_t>(AccoRows::table().size());
    default:
      return 0;
  }
}

entrain_status_t entrain_option(int32_t method, int32_t index, entrain_option_t* option) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(CheckChoice("method", method, ENTRAIN_METHOD_ACCO, "ENTRAIN_METHOD_*"));
    return method == ENTRAIN_METHOD_EDIT ? DescribeOption<EditRows>(index, option)
                                         : DescribeOption<AccoRows>(index, option);
  });
}

entrain_status_t entrain_edit_option_matters(const entrain_edit_config_t* config, int32_t index,
                                             int32_t* matters) {
  return Guard(__func__, [&] { return OptionMatters<EditRows>(config, index, matters); });
}

entrain_status_t entrain_acco_option_matters(const entrain_acco_config_t* config, int32_t index,
                                             int32_t* matters) {
  return Guard(__func__, [&] { return OptionMatters<AccoRows>(config, index, matters); });
}

}  // extern "C"
