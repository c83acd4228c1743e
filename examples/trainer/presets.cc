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

void Set(const entrain_edit_option_t& option, double value, void* config) {
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

// Returns the index of the option `name`, which must be in `described`.
size_t IndexOf(const DescribedOptions& described, const std::string& name) {
  const auto found = std::find_if(described.begin(), described.end(),
                                  [&](const auto& option) { return option.name == name; });
  return static_cast<size_t>(found - described.begin());
}

template <typename Describe>
DescribedOptions Described(int32_t count, Describe describe) {
  DescribedOptions options(static_cast<size_t>(count));
  for (int32_t index = 0; index < count; ++index) {
    entrain_edit_option_t& option = options[static_cast<size_t>(index)];
    entrain_edit_option_init(&option);
    Check(describe(index, &option));
  }
  return options;
}

class ConfigMaker {
 public:
  ConfigMaker(const Options& options, int layers)
      : preset_(PresetOf(options.method)),
        given_(options.edit),
        layers_(layers),
        described_(OptionsOfEdit()) {
    entrain_edit_config_init(&config_);
    config_.gradient_accumulation_steps = static_cast<int32_t>(options.gradient_accumulation_steps);
  }

  entrain_edit_config_t Make() {
    SetGiven(given_, described_, &config_);
    for (const Setting& setting : preset_.settings) {
      if (setting.option != nullptr && Applies(setting.option)) {
        Set(described_[IndexOf(described_, setting.option)], ValueOf(setting), &config_);
      }
    }
    return config_;
  }

 private:
  bool Applies(const std::string& name) const {
    if (given_.count(name) > 0) {
      return false;
    }
    if (name == "outer_nesterov" && config_.outer_momentum == 0) {
      return false;
    }
    if (name.rfind("outer_", 0) == 0 && HasOtherOuter()) {
      return false;
    }
    int32_t matters = 0;
    const auto index = static_cast<int32_t>(IndexOf(described_, name));
    Check(entrain_edit_option_matters(&config_, index, &matters));
    return matters != 0;
  }
  // Returns true if the command line sets an outer optimizer other than that of the preset. Then
  // the preset's learning rate and momentum are wrong.
  bool HasOtherOuter() const {
    const auto given = given_.find("outer_optimizer");
    return given != given_.end() &&
           std::none_of(std::begin(preset_.settings), std::end(preset_.settings),
                        [&](const Setting& setting) {
                          return setting.option != nullptr && given->first == setting.option &&
                                 given->second == setting.value;
                        });
  }
  double ValueOf(const Setting& setting) const {
    return setting.value == kInterval     ? static_cast<double>(config_.local_sgd_sync_interval)
           : setting.value == kALayerEach ? std::min(layers_, 8)
                                          : setting.value;
  }

  const Preset& preset_;
  const GivenOptions& given_;
  const int layers_;
  const DescribedOptions described_;
  entrain_edit_config_t config_;
};

}  // namespace

const Preset& PresetOf(const std::string& name) {
  return *std::find_if(std::begin(kPresets), std::end(kPresets),
                       [&](const Preset& preset) { return preset.name == name; });
}

DescribedOptions OptionsOfEdit() {
  return Described(entrain_edit_option_count(), entrain_edit_option);
}

DescribedOptions OptionsOfChannel() {
  return Described(entrain_acco_option_count(), entrain_acco_option);
}

void SetGiven(const GivenOptions& given, const DescribedOptions& described, void* config) {
  for (const auto& [name, value] : given) {
    Set(described[IndexOf(described, name)], value, config);
  }
}

entrain_edit_config_t ConfigOf(const Options& options, int layers) {
  return ConfigMaker(options, layers).Make();
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
