#include "examples/trainer/inert_flags.h"

#include <algorithm>
#include <cstddef>

#include "examples/trainer/api.h"
#include "examples/trainer/presets.h"
#include <CLI/CLI.hpp>

namespace trainer {
namespace {

// The line of the table that says when a flag has no effect. The options of EDiT have more such
// conditions, which the library knows (entrain_edit_option_matters).
struct InertFlag {
  const char* flag;
  bool (*inert)(const Options& options, const entrain_edit_config_t& edit);
  const char* why;  // follows "--flag has no effect "
};

constexpr InertFlag kInertFlags[] = {
    {"--shard-prefetch", [](const Options& o, const auto&) { return o.shard_size == 1; },
     "with --shard-size 1, where no layer is gathered; set --shard-size, or leave it out"},
    {"--nesterov", [](const Options& o, const auto&) { return o.inner.momentum == 0; },
     "with --momentum 0; set --momentum, or leave it out"},
    {"--prompt", [](const Options& o, const auto&) { return o.sample == 0; },
     "without a sample; set --sample, or leave it out"},
    {"--sample-temperature", [](const Options& o, const auto&) { return o.sample == 0; },
     "without a sample; set --sample, or leave it out"},
    {"--full-state-dict", [](const Options& o, const auto&) { return o.save_dir.empty(); },
     "on --resume, which recognises the form; set --save-dir, or leave it out"},
    {"--wire-rounding",
     [](const Options&, const entrain_edit_config_t& e) {
       return e.wire_format == ENTRAIN_WIRE_F32;
     },
     "with --wire-format f32, to which nothing is rounded; set --wire-format, or leave it out"},
};

// Returns true if the user has given the flag.
bool IsGiven(const FlagGroups& groups, const char* flag) {
  const CLI::App* const all[] = {
      groups.run,  groups.model,   groups.inner,       groups.wsam,       groups.both,
      groups.edit, groups.channel, groups.checkpoints, groups.conditions, groups.results};
  return std::any_of(std::begin(all), std::end(all), [flag](const CLI::App* group) {
    const CLI::Option* const option = group->get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  });
}

// Adds the given options of EDiT that have no effect and their default value. (entrain_edit_create
// refuses any other value, and says why.)
void AddLibrarys(const Options& o, const entrain_edit_config_t& config,
                 std::vector<std::string>* warnings) {
  const DescribedOptions described = OptionsOfEdit();
  for (size_t i = 0; i < described.size(); ++i) {
    const auto given = o.edit.find(described[i].name);
    int32_t matters = 1;
    if (given != o.edit.end() && given->second == described[i].default_value) {
      Check(entrain_edit_option_matters(&config, static_cast<int32_t>(i), &matters));
    }
    if (matters == 0) {
      std::string flag = std::string("--") + described[i].name;
      std::replace(flag.begin(), flag.end(), '_', '-');
      warnings->push_back(flag + " has no effect with --method " + o.method +
                          " and its other options; leave it out, or set the option that it "
                          "belongs to (--help)");
    }
  }
}

}  // namespace

std::vector<std::string> WarningsOf(const Options& options, const FlagGroups& groups) {
  const entrain_edit_config_t edit = ConfigOf(options, options.model.layers);
  std::vector<std::string> warnings;
  for (const InertFlag& one : kInertFlags) {
    if (IsGiven(groups, one.flag) && one.inert(options, edit)) {
      warnings.push_back(std::string(one.flag) + " has no effect " + one.why);
    }
  }
  if (PresetOf(options.method).engine == Engine::kReplicas) {
    AddLibrarys(options, edit, &warnings);
  }
  return warnings;
}

}  // namespace trainer
