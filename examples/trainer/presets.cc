#include "examples/trainer/presets.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>

#include "examples/trainer/api.h"

namespace trainer {
namespace {

template <typename T>
void Write(double value, size_t offset, void* config) {
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

template <typename T>
double ReadAt(const entrain_edit_config_t& config, int64_t offset) {
  T value = 0;
  std::memcpy(&value, reinterpret_cast<const char*>(&config) + offset, sizeof(value));
  return static_cast<double>(value);
}

// Returns the index of the option `name`, which must be in `described`.
size_t IndexOf(const DescribedOptions& described, const std::string& name) {
  const auto found = std::find_if(described.begin(), described.end(),
                                  [&](const auto& option) { return option.name == name; });
  return static_cast<size_t>(found - described.begin());
}

DescribedOptions Described(int32_t method) {
  DescribedOptions options(static_cast<size_t>(entrain_option_count(method)));
  for (int32_t index = 0; index < entrain_option_count(method); ++index) {
    entrain_option_t& option = options[static_cast<size_t>(index)];
    entrain_option_init(&option);
    Check(entrain_option(method, index, &option));
  }
  return options;
}

}  // namespace

const Preset& PresetOf(const std::string& name) {
  return *std::find_if(std::begin(kPresets), std::end(kPresets),
                       [&](const Preset& preset) { return preset.name == name; });
}

DescribedOptions OptionsOfEdit() {
  return Described(ENTRAIN_METHOD_EDIT);
}

DescribedOptions OptionsOfChannel() {
  return Described(ENTRAIN_METHOD_ACCO);
}

double ValueIn(const entrain_edit_config_t& config, const entrain_option_t& option) {
  switch (option.type) {
    case ENTRAIN_OPTION_F64:
      return ReadAt<double>(config, option.offset);
    case ENTRAIN_OPTION_I64:
      return ReadAt<int64_t>(config, option.offset);
    case ENTRAIN_OPTION_U64:
      return ReadAt<uint64_t>(config, option.offset);
    default:
      return ReadAt<int32_t>(config, option.offset);
  }
}

void SetGiven(const GivenOptions& given, const DescribedOptions& described, void* config) {
  for (const auto& [name, value] : given) {
    Set(described[IndexOf(described, name)], value, config);
  }
}

entrain_edit_config_t ConfigOf(const Options& options, int layers) {
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  config.gradient_accumulation_steps = static_cast<int32_t>(options.gradient_accumulation_steps);
  SetGiven(options.edit, OptionsOfEdit(), &config);
  if (PresetOf(options.method).engine != Engine::kReplicas) {
    return config;
  }
  std::vector<const char*> given;
  for (const auto& [name, value] : options.edit) {
    given.push_back(name.c_str());
  }
  Check(entrain_edit_config_preset(&config, options.method.c_str(), layers, given.data(),
                                   static_cast<int32_t>(given.size())));
  return config;
}

std::string IdentityOf(const Options& options, double entropy) {
  const InnerOptions& inner = options.inner;
  std::ostringstream lines;
  lines.precision(15);
  lines << "task=" << options.task << "\ndata (entropy)=" << entropy << "\nseed=" << options.seed
        << "\nbatch_size=" << options.batch_size << "\nlength=" << options.model.length
        << "\ngradient_accumulation_steps=" << options.gradient_accumulation_steps
        << "\nsteps=" << options.steps << "\ntokens=" << options.tokens
        << "\noptimizer=" << inner.optimizer << "\nlr=" << inner.lr << "\nmin_lr=" << inner.min_lr
        << "\nlr_warmup_steps=" << inner.lr_warmup_steps << "\nweight_decay=" << inner.weight_decay
        << "\ngrad_clip=" << inner.grad_clip << "\nwsam=" << options.wsam.form
        << "\nwsam_rho=" << options.wsam.rho;
  return lines.str();
}

}  // namespace trainer
