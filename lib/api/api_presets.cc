// Implements the presets of train.h: the published methods as sets of EDiT's options.
#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "include/entrain/train.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global

namespace {

// A value of an option. `option` is the name of the option's field.
struct Setting {
  const char* option;
  double value;
};
// Placeholders for values that depend on the run.
constexpr double kInterval = -1;    // stands for local_sgd_sync_interval
constexpr double kALayerEach = -2;  // stands for the number of layers, at most 8

struct Preset {
  const char* name;
  Setting settings[16] = {};  // unused entries have no option
};

constexpr Preset kPresets[] = {
    // EDiT (arXiv 2412.07210), algorithm 1 and section 3.2.
    {"edit",
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"pseudo_gradnorm_reduce", 1},
      {"clip_pseudo_grad", 10},
      {"skip_anomaly", 1}}},
    {"a-edit",
     {{"use_async", 1},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"pseudo_gradnorm_reduce", 1},
      {"clip_pseudo_grad", 10},
      {"skip_anomaly", 1}}},
    // arXiv 2311.08105.
    {"diloco",
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1}}},
    // arXiv 2501.18512.
    {"streaming-diloco",
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"overlap_steps", 1},
      {"overlap_merge", ENTRAIN_MERGE_MIX},
      {"fragments", kALayerEach},
      {"fragment_pattern", ENTRAIN_FRAGMENT_STRIDED},
      {"wire_format", ENTRAIN_WIRE_INT4}}},
    // arXiv 2604.21428. Here the replicas themselves are the paper's synchroniser
    // (background_rounds.h). A replica that is late keeps its steps for its next round. overlap_mix:
    // docs/lab/quality.md.
    {"decoupled-diloco",
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_LINEAR},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_nesterov", 1},
      {"overlap_steps", kInterval},
      {"overlap_merge", ENTRAIN_MERGE_MIX},
      {"overlap_mix", 0.25},
      {"fragments", kALayerEach},
      {"fragment_pattern", ENTRAIN_FRAGMENT_STRIDED},
      {"quorum", 1},
      {"round_deadline", 10},
      {"late", ENTRAIN_LATE_CARRY},
      {"use_step_weight", 1},
      {"step_weight_ratio", 1},
      {"silence", 1}}},
    // arXiv 1808.07217.
    {"post-local-sgd", {{"local_sgd_sync_interval", 16}}},
    // arXiv 2401.16265.
    {"co2",
     {{"local_sgd_sync_interval", 16},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_lr", 1},
      {"outer_momentum", 0.2},
      {"overlap_steps", kInterval},
      {"overlap_merge", ENTRAIN_MERGE_RESTART},
      {"staleness_penalty", 1},
      {"outer_momentum_clip", 10}}},
    // arXiv 2508.15706: sends 1/64 of the elements in two bits each. The unsent part decays and
    // takes the place of momentum.
    {"sparseloco",
     {{"local_sgd_sync_interval", 16},
      {"reducer", ENTRAIN_REDUCER_GTA},
      {"outer_optimizer", ENTRAIN_OUTER_SGD},
      {"outer_lr", 1},
      {"outer_momentum", 0},
      {"sparsification_method", ENTRAIN_SPARSIFY_MAGNITUDE},
      {"sparsify_chunk", 4096},
      {"density", 1.0 / 64},
      {"wire_format", ENTRAIN_WIRE_INT2},
      {"wire_block", 64},
      {"error_feedback", 1},
      {"error_decay", 0.95}}},
    // The defaults of the published code of EDiT, which are those of entrain_edit_config_init.
    {"published"},
};

const Preset* Find(const char* name) {
  const auto found =
      std::find_if(std::begin(kPresets), std::end(kPresets),
                   [&](const Preset& preset) { return std::strcmp(preset.name, name) == 0; });
  return found == std::end(kPresets) ? nullptr : found;
}

template <typename T>
void Write(double value, int64_t offset, void* config) {
  const T number = static_cast<T>(value);
  std::memcpy(static_cast<char*>(config) + offset, &number, sizeof(number));
}

void Set(const entrain_option_t& option, double value, void* config) {
  switch (option.type) {
    case ENTRAIN_OPTION_F64:
      return Write<double>(value, option.offset, config);
    case ENTRAIN_OPTION_I64:
      return Write<int64_t>(value, option.offset, config);
    case ENTRAIN_OPTION_U64:
      return Write<uint64_t>(value, option.offset, config);
    default:
      return Write<int32_t>(value, option.offset, config);
  }
}

class PresetWriter {
 public:
  PresetWriter(const Preset& preset, int32_t layers, std::set<std::string> given,
               entrain_edit_config_t* config)
      : preset_(preset), layers_(layers), given_(std::move(given)), config_(*config) {
    for (int32_t index = 0; index < entrain_option_count(ENTRAIN_METHOD_EDIT); ++index) {
      entrain_option_t option;
      entrain_option_init(&option);
      entrain_option(ENTRAIN_METHOD_EDIT, index, &option);
      options_.push_back(option);
    }
  }

  absl::Status CheckGiven() const {
    for (const std::string& name : given_) {
      if (IndexOf(name) < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("given: \"", name, "\" is no option of EDiT"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Apply() {
    for (const Setting& setting : preset_.settings) {
      if (setting.option != nullptr) {
        ENTRAIN_ASSIGN_OR_RETURN(const bool applies, Applies(setting.option));
        if (applies) {
          Set(options_[static_cast<size_t>(IndexOf(setting.option))], ValueOf(setting), &config_);
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  int32_t IndexOf(const std::string& name) const {
    const auto found = std::find_if(options_.begin(), options_.end(),
                                    [&](const auto& option) { return option.name == name; });
    return found == options_.end() ? -1 : static_cast<int32_t>(found - options_.begin());
  }
  // Returns true if the setting has an effect together with the caller's values and the settings
  // before it, and the caller has not set the option.
  absl::StatusOr<bool> Applies(const std::string& name) const {
    if (given_.count(name) > 0 || (name == "outer_nesterov" && config_.outer_momentum == 0) ||
        (name.rfind("outer_", 0) == 0 && HasOtherOuter())) {
      return false;
    }
    int32_t matters = 0;
    if (entrain_edit_option_matters(&config_, IndexOf(name), &matters) != ENTRAIN_OK) {
      return absl::InvalidArgumentError(entrain_last_error());
    }
    return matters != 0;
  }
  // Returns true if the caller has set an outer optimizer other than that of the preset. Then the
  // preset's learning rate and momentum are wrong.
  bool HasOtherOuter() const {
    const std::string outer = "outer_optimizer";
    if (given_.count(outer) == 0) {
      return false;
    }
    return std::none_of(std::begin(preset_.settings), std::end(preset_.settings),
                        [&](const Setting& setting) {
                          return setting.option != nullptr && outer == setting.option &&
                                 setting.value == config_.outer_optimizer;
                        });
  }
  double ValueOf(const Setting& setting) const {
    return setting.value == kInterval     ? static_cast<double>(config_.local_sgd_sync_interval)
           : setting.value == kALayerEach ? std::clamp(layers_, 1, 8)
                                          : setting.value;
  }

  const Preset& preset_;
  const int32_t layers_;
  const std::set<std::string> given_;
  entrain_edit_config_t& config_;
  std::vector<entrain_option_t> options_;
};

}  // namespace

extern "C" {

int32_t entrain_edit_preset_count(void) {
  return static_cast<int32_t>(std::size(kPresets));
}

const char* entrain_edit_preset_name(int32_t index) {
  return index < 0 || index >= entrain_edit_preset_count() ? "" : kPresets[index].name;
}

entrain_status_t entrain_edit_config_preset(entrain_edit_config_t* config, const char* name,
                                            int32_t layers, const char* const* given,
                                            int32_t count) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(config, "config"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(name, "name"));
    const Preset* const preset = Find(name);
    if (preset == nullptr) {
      const std::string names = absl::StrJoin(
          kPresets, ", ", [](std::string* out, const Preset& one) { out->append(one.name); });
      return absl::InvalidArgumentError(
          absl::StrCat("name: \"", name, "\" is none of the methods: ", names));
    }
    if (layers < 0 || count < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          layers < 0 ? "layers: " : "count: ", std::min(layers, count), " is negative"));
    }
    std::set<std::string> names;
    for (int32_t i = 0; i < count; ++i) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(given, "given"));
      ENTRAIN_RETURN_IF_ERROR(NotNull(given[i], "given"));
      names.insert(given[i]);
    }
    entrain_edit_config_t known;
    entrain_edit_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_edit_config_t"));
    PresetWriter writer(*preset, layers, std::move(names), &known);
    ENTRAIN_RETURN_IF_ERROR(writer.CheckGiven());
    ENTRAIN_RETURN_IF_ERROR(writer.Apply());
    const size_t size = config->size;  // of a caller that may know fewer fields
    std::memcpy(config, &known, std::min(size, sizeof(known)));
    config->size = size;
    return absl::OkStatus();
  });
}

}  // extern "C"
